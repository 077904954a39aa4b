"""Faults, what must happen, and the tests that see it: `python -m tests.faults` runs them."""

from typing import NamedTuple


class Fault(NamedTuple):
    number: int
    what: str
    happens: str
    tests: tuple[str, ...]


_STORE, _SEGMENTS, _STORES = "test_store.py", "test_segments.py", "test_stores.py"
_KILLED, _EXTENDED = "test_killed.py", "test_extended.py"
_WORKERS, _DASK, _DEVICES = "test_workers.py", "test_dask.py", "test_devices.py"

FAULTS = (
    Fault(
        1,
        "SIGKILL at every write, fsync, rename, removal",
        "the sweep goes on; rows equal an uninterrupted sweep's, bit for bit, none computed twice",
        (f"{_KILLED}::test_at_every_write_point", "test_files.py"),
    ),
    Fault(
        2,
        "SIGKILL at 50 random times",
        "progress never goes back; the same rows at the end",
        (f"{_KILLED}::test_at_random_times",),
    ),
    Fault(
        3,
        "SIGTERM or Ctrl-C while steps are taken",
        "the chunk ends, rows and checkpoints are saved, the exit code of a command is 143 or 130",
        (
            "test_interrupts.py::test_a_command_ends_in_order_and_goes_on",
            "test_interrupts.py::test_a_sweep_stops_with_what_has_ended",
            "test_checkpoints.py::test_they_are_saved_at_a_stop",
        ),
    ),
    Fault(
        4,
        "a second SIGTERM or Ctrl-C",
        "the process ends at once; rows that had landed are whole",
        ("test_interrupts.py::test_the_second_leaves_at_once",),
    ),
    Fault(
        5,
        "a worker stopped past its time, then continued; a writer stopped, then continued",
        "only the sweep's process writes; its lock holds while it is stopped",
        (
            f"{_DASK}::test_a_worker_that_is_lost_loses_nothing",
            f"{_SEGMENTS}::test_one_that_is_stopped_holds_it",
        ),
    ),
    Fault(
        6,
        "disk full",
        "an error that names the file and what to do; what was there is whole",
        (
            f"{_SEGMENTS}::test_what_cannot_be_written_is_named_and_not_there",
            "test_files.py::test_what_cannot_be_written_is_named",
            f"{_STORE}::test_streams_stop_when_a_row_cannot_be_saved",
            f"{_STORE}::test_networks_that_do_not_fit_the_disk",
        ),
    ),
    Fault(
        7,
        "EIO from fsync",
        "an error; the segment takes no more rows",
        (f"{_SEGMENTS}::test_what_cannot_be_written_is_named_and_not_there",),
    ),
    Fault(
        8,
        "read-only folder, no permission",
        "an error before any run is drawn",
        (f"{_STORE}::test_a_folder_that_cannot_be_written_is_told_before_training",),
    ),
    Fault(
        9,
        "a segment cut short or emptied",
        "its whole lines count, the other runs are computed again",
        (
            f"{_SEGMENTS}::test_cut_short_anywhere_the_whole_lines_count",
            f"{_STORE}::test_rows_of_a_harmed_segment_are_computed_again",
        ),
    ),
    Fault(
        10,
        "one flipped bit",
        "a warning that names the file; that row is computed again",
        (
            f"{_SEGMENTS}::test_every_flipped_bit_is_seen",
            f"{_STORES}::test_is_told_taken_out_and_computed_again",
        ),
    ),
    Fault(
        11,
        "leftover temporary files",
        "the store's own are cleaned by the next who writes, no others",
        (f"{_SEGMENTS}::test_its_own_leftovers_alone_are_cleaned",),
    ),
    Fault(
        12,
        "the table, or everything but the segments, deleted",
        "made again, byte for byte, from the rows",
        (f"{_STORE}::test_all_but_the_segments_can_be_deleted",),
    ),
    Fault(
        13,
        "two processes, one store",
        "the second is told who holds it; shards share it",
        (
            f"{_SEGMENTS}::test_a_second_is_told_who_holds_it",
            f"{_STORE}::test_a_store_in_use_is_told_before_training",
            f"{_STORE}::TestShards",
        ),
    ),
    Fault(
        14,
        "a worker dies holding work",
        "replaced; its work is done again",
        (
            f"{_WORKERS}::test_a_killed_worker_loses_no_row",
            f"{_WORKERS}::test_one_that_is_killed_from_outside_is_replaced",
            f"{_WORKERS}::test_a_death_is_seen_while_others_work",
            f"{_DASK}::test_a_worker_that_is_lost_loses_nothing",
        ),
    ),
    Fault(
        15,
        "a run that kills its worker three times",
        "status RAISED with what happened; the sweep goes on",
        (
            f"{_WORKERS}::test_a_run_that_kills_its_worker_ends_with_that",
            f"{_WORKERS}::test_a_task_that_kills_its_worker_is_split",
            f"{_WORKERS}::test_what_kills_them_is_told_and_the_others_go_on",
            f"{_WORKERS}::test_what_runs_beside_is_not_blamed",
            f"{_DASK}::test_a_run_that_kills_its_workers_ends_with_that",
        ),
    ),
    Fault(
        16,
        "resume with another configuration or code",
        "refused, with what differs",
        (
            f"{_STORE}::test_other_runs_alone_are_refused_with_what_differs",
            "test_identity.py",
            "test_kept.py",
            "test_changed.py",
        ),
    ),
    Fault(
        17,
        "resume with another jaxlib, device, flags",
        "refused with what differs, unless allowed by a word, and recorded then",
        (
            f"{_DEVICES}::test_settings_are_part_of_the_store",
            f"{_DEVICES}::test_the_environment_says_all_that_bits_depend_on",
            f"{_EXTENDED}::test_other_settings_mix_by_a_word_alone",
        ),
    ),
    Fault(
        18,
        "a newer or older store",
        "an error that says which version reads it",
        (
            f"{_SEGMENTS}::test_a_newer_format_is_told",
            f"{_SEGMENTS}::test_a_store_of_before_is_told",
        ),
    ),
    Fault(
        19,
        "device out of memory",
        "half the lanes, down to 2, recorded; then status RAISED",
        ("test_memory.py",),
    ),
    Fault(
        20,
        "an accelerator asked for and absent",
        "an error that names what there is",
        (f"{_DEVICES}::test_a_device_that_is_not_there",),
    ),
    Fault(
        21,
        "a compilation cache cut short or foreign",
        "the same results",
        (
            f"{_DEVICES}::test_a_harmed_compilation_cache_changes_nothing",
            "test_traces.py",
        ),
    ),
    Fault(
        22,
        "NaN or inf in one lane",
        "the status of that lane; its neighbours keep their bits",
        ("test_statuses.py::test_a_lane_of_nan_leaves_its_neighbours_alone",),
    ),
    Fault(
        23,
        "another order of lanes, other runs beside",
        "the same bits",
        (
            "test_engine.py::test_bits_depend_neither_on_lane",
            "test_trajectories.py::test_each_has_the_bits_of_itself_alone",
            "test_trajectories.py::TestWhatIsShared",
        ),
    ),
    Fault(
        24,
        "1, 2 or 4 devices",
        "the same bits",
        (f"{_DEVICES}::test_bits_do_not_depend_on_their_number",),
    ),
    Fault(
        25,
        "a last batch that is not full, a single run",
        "empty lanes, at least two on an accelerator, the same bits",
        (
            "test_engine.py::test_bits_depend_neither_on_lane",
            "test_planning.py::test_an_accelerator_never_has_one_lane",
        ),
    ),
    Fault(
        26,
        "NaN or inf in data",
        "ValueError with the row",
        ("test_datasets.py::test_validate_refuses",),
    ),
    Fault(
        27,
        "labels that are not -1 or 1, wrong shapes or types",
        "ValueError: expected and got",
        ("test_requirements.py",),
    ),
    Fault(28, "one class only", "told", ("test_datasets.py::test_validate_refuses",)),
    Fault(
        29,
        "no samples, no neurons, no dimensions",
        "ValueError",
        (
            "test_specs.py::test_refuses",
            "test_grid.py::test_refuses",
            "test_datasets.py::test_bad_sizes_are_refused",
        ),
    ),
    Fault(
        30,
        "equal points with opposite labels",
        "status NOT_SEPARABLE at the step cap, or DIVERGED by a flow's leap; both name them",
        ("test_statuses.py::test_status_not_separable",),
    ),
    Fault(
        31,
        "a seed below 0, from 2**32 on, no integer",
        "ValueError",
        (
            "test_specs.py::test_refuses",
            "test_grid.py::test_refuses",
        ),
    ),
    Fault(
        32,
        "the same run twice in a grid",
        "one row, told once; runs that differ in the eighth digit are two",
        ("test_engine.py::test_runs_given_twice_run_once", "test_identity.py", "test_kept.py"),
    ),
    Fault(
        33,
        "float64 where it would be rounded",
        "ValueError",
        ("test_requirements.py::test_float64",),
    ),
    Fault(
        34,
        "a target below what the steps allow",
        "status STEP_CAP",
        ("test_statuses.py::test_status_step_cap",),
    ),
    Fault(
        35,
        "a loss of 1e-30, 1e-300, 1e-3000",
        "log L is that of mpmath",
        ("test_losses.py::test_log_loss_matches_mpmath", "test_losses.py::test_log_loss_far_below"),
    ),
    Fault(
        36,
        "a sample misclassified already; no flip in reach",
        "size 0; inf with a status",
        (
            "test_perturbations.py::test_misclassified",
            "test_perturbations.py::test_no_flip_within",
            "test_perturbations.py::test_one_neuron_has_one_sign",
        ),
    ),
    Fault(
        37,
        "a margin or preactivation of exactly 0",
        "the documented convention",
        (
            "test_networks.py::test_relu_has_derivative_zero",
            "test_perturbations.py::test_exactly_zero",
            "test_perturbations.py::test_zero_at_the_start",
        ),
    ),
    Fault(
        38,
        "a learning rate of 0 or NaN; a run that diverges",
        "ValueError; status DIVERGED",
        (
            "test_statuses.py::test_status_diverged",
            "test_optimizers.py::test_numbers_that_are_not_positive_are_refused",
        ),
    ),
    Fault(
        39,
        "the store of another sweep",
        "refused, with what differs",
        (f"{_STORE}::test_other_runs_alone_are_refused_with_what_differs",),
    ),
    Fault(
        40,
        "an empty grid, an unknown preset, a misspelled option",
        "an error that lists what there is",
        (
            "test_specs.py::test_misspelled_fields",
            "test_specs.py::test_refuses",
            "test_grid.py::test_refuses",
            "test_studies.py::test_misspelled_options",
            "test_command.py::test_unknown_names_are_told",
        ),
    ),
    Fault(
        41,
        "the same sweep on another number of cores",
        "the number of threads is recorded and compared; mixing is refused",
        (f"{_DEVICES}::TestCores",),
    ),
    Fault(
        42,
        "a folder with other people's files",
        "only the store's own files are touched",
        (f"{_SEGMENTS}::test_its_own_leftovers_alone_are_cleaned",),
    ),
    Fault(
        43,
        "rows or networks swapped or renamed",
        "seen: the checksum covers the name and what wrote the row",
        (
            f"{_SEGMENTS}::test_rows_that_changed_places_do_not_count",
            f"{_STORES}::test_is_told_taken_out_and_computed_again",
        ),
    ),
    Fault(
        44,
        "a Dask client is open while a sweep ends",
        "results are saved",
        (f"{_STORE}::test_saving_asks_nobody_for_a_lock", f"{_DASK}"),
    ),
    Fault(
        45,
        "a run that raises",
        "status RAISED with its traceback; the others go on",
        (
            "test_raised.py",
            "test_trajectories.py::test_one_that_cannot_be_measured",
            "test_trajectories.py::test_all_of_one_that",
        ),
    ),
    Fault(
        46,
        "all workers gone",
        "an error after a time that the user sets",
        (f"{_WORKERS}::test_all_workers_gone", f"{_DASK}::test_no_worker_is_there"),
    ),
    Fault(
        47,
        "the parent killed",
        "its workers end by themselves",
        (f"{_WORKERS}::test_they_end_with_their_parent",),
    ),
    Fault(
        48,
        "a worker pinned to one core",
        "the bits of the serial sweep",
        (f"{_DEVICES}::TestCores",),
    ),
    Fault(
        49,
        "the same runs in another order",
        "goes on",
        (f"{_EXTENDED}::test_in_another_order",),
    ),
    Fault(
        50,
        "a finished store, read-only",
        "opens by the same call",
        (f"{_STORE}::test_a_folder_that_cannot_be_written_is_told_before_training",),
    ),
    Fault(
        51,
        "more seeds, values, measurements",
        "what is missing is computed",
        (
            f"{_EXTENDED}::test_by_seeds_and_values",
            f"{_EXTENDED}::test_by_measurements",
        ),
    ),
    Fault(
        52,
        "a segment whose beginning is gone",
        "named; its runs are computed again",
        (
            f"{_SEGMENTS}::test_a_segment_without_its_first_lines_is_named",
            f"{_STORES}::test_is_told_taken_out_and_computed_again",
        ),
    ),
)
