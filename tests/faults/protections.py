"""Takes protections away one by one and sees tests fail: `python -m tests.faults.protections`.

Each is an edit of the package's text, made in a copy. A protection whose removal no test notices is
one that may be lost unnoticed.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent


class Protection(NamedTuple):
    """What protects against a fault, where, the text without it, and the tests that must fail."""

    fault: int
    what: str
    file: str
    text: str
    without: str
    tests: str


_SEGMENTS, _LOCK, _STORE = "store/segments.py", "store/lock.py", "store/store.py"
_STORED, _DRIVER, _DEVICES = (
    "engine/tables/stored.py",
    "engine/driver.py",
    "engine/machine/devices.py",
)
_TRAJECTORIES, _TRACES = "engine/planning/trajectories.py", "engine/machine/traces.py"
_LOADED = "process/loaded.py"

PROTECTIONS = (
    Protection(
        1,
        "fsync before a file is renamed",
        "process/files.py",
        "            os.fsync(file.fileno())\n",
        "",
        "test_files.py",
    ),
    Protection(
        1,
        "a file is written beside, then renamed",
        "process/files.py",
        '    part = path.with_name(f"{path.name}.{token_hex(8)}.part")\n',
        "    part = path\n",
        "test_files.py",
    ),
    Protection(
        1,
        "each writer of a file has a name of its own beside it",
        "process/files.py",
        '    part = path.with_name(f"{path.name}.{token_hex(8)}.part")\n',
        '    part = path.with_name(f"{path.name}.part")\n',
        "test_files.py::test_two_writers_of_one_file",
    ),
    Protection(
        1,
        "fsync of the folder after a rename",
        "process/files.py",
        "        sync_folder(path.parent)\n",
        "",
        "test_files.py",
    ),
    Protection(
        1,
        "a network lands before its row",
        _STORED,
        "        for row, (name, _, _) in zip(rows, records, strict=True):\n"
        "            if row.kept is not None:\n"
        "                self._store.save_network(name, row.network, row.kept)\n"
        "        self._writer.add_all(records)\n",
        "        self._writer.add_all(records)\n"
        "        for row, (name, _, _) in zip(rows, records, strict=True):\n"
        "            if row.kept is not None:\n"
        "                self._store.save_network(name, row.network, row.kept)\n",
        "test_killed.py::TestKilled::test_at_every_write_point",
    ),
    Protection(
        1,
        "a segment begins with what wrote it",
        _SEGMENTS,
        '        self._append(2 * f"{self._salt} {header}\\n")\n',
        '        self._append(f"{self._salt} {header}\\n")\n',
        "test_segments.py",
    ),
    Protection(
        3,
        "the first signal waits for the chunk",
        "engine/running/interrupts.py",
        "            if not request.sweeps:\n",
        "            if True:\n",
        "test_interrupts.py",
    ),
    Protection(
        3,
        "runs under way are saved at a stop",
        "engine/running/lanes.py",
        "        slots.save(SECONDS_WORTH_SAVING)\n",
        "        pass\n",
        "test_checkpoints.py::test_they_are_saved_at_a_stop",
    ),
    Protection(
        3,
        "a run that was saved on its way is not trained again behind another",
        "engine/running/streams.py",
        "saved is not None and run in saved",
        "False",
        "test_checkpoints.py::test_one_that_was_saved_does_not_begin_anew_behind_another",
    ),
    Protection(
        3,
        "a checkpoint that goes before it is read is no error of its run",
        "engine/running/checkpoints.py",
        "        except (OSError, ValueError) as error:\n",
        "        except ValueError as error:\n",
        "test_checkpoints.py::test_one_that_does_not_fit_is_left_out",
    ),
    Protection(
        3,
        "a stream knows what another has saved",
        "engine/running/checkpoints.py",
        "            self._saved.note(run)\n",
        "            pass\n",
        "test_checkpoints.py::test_another_stream_goes_on_from_what_one_has_saved",
    ),
    Protection(
        3,
        "Ctrl-C leaves nobody waiting for what another thread began to compute",
        "engine/machine/once.py",
        "                if self._results.get(args) is mine:\n",
        "                if False:\n",
        "test_once.py::test_ctrl_c_leaves_nobody_waiting",
    ),
    Protection(
        4,
        "the second signal leaves a command at once",
        "engine/running/interrupts.py",
        "            os._exit(128 + number)\n",
        "            pass\n",
        "test_interrupts.py::test_the_second_leaves_at_once",
    ),
    Protection(
        5,
        "the lock is held",
        _LOCK,
        "            lock.acquire()\n",
        "            pass\n",
        "test_segments.py::TestOneWriter",
    ),
    Protection(
        6,
        "a line that was begun is taken back",
        _SEGMENTS,
        "                os.ftruncate(self._file, self._end)\n",
        "                pass\n",
        "test_segments.py::test_what_cannot_be_written_is_named_and_not_there",
    ),
    Protection(
        6,
        "errors name the file",
        "process/files.py",
        "        raise OSError(error.errno, why, str(path)) from error\n",
        "        raise\n",
        "test_files.py",
    ),
    Protection(
        6,
        "room for networks is looked for first",
        _STORED,
        "        self._require_room([run for run in wanted if not self._has_network(run)])\n",
        "",
        "test_store.py::TestStore::test_networks_that_do_not_fit_the_disk",
    ),
    Protection(
        7,
        "nothing is added to a segment after an error",
        _SEGMENTS,
        "            self._broken = True\n",
        "",
        "test_segments.py::test_what_cannot_be_written_is_named_and_not_there",
    ),
    Protection(
        7,
        "fsync of rows",
        _SEGMENTS,
        "            os.fsync(self._file)\n",
        "            pass\n",
        "test_segments.py",
    ),
    Protection(
        9,
        "a last line that was cut short does not count",
        _SEGMENTS,
        '        *lines, rest = path.read_bytes().split(b"\\n")\n    except',
        '        lines = path.read_bytes().split(b"\\n")\n        rest = b""\n    except',
        "test_segments.py test_store.py::TestStore",
    ),
    Protection(
        10,
        "a row that lacks what it refers to does not count",
        _SEGMENTS,
        "        known[name] = name in definitions\n",
        "        known[name] = True\n",
        "test_stores.py::TestDamage",
    ),
    Protection(
        10,
        "the checksum is compared",
        _SEGMENTS,
        "    return text if checksum == _checksum(salt, text) else None\n",
        "    return text\n",
        "test_segments.py",
    ),
    Protection(
        10,
        "a merge brings back a network that is damaged",
        "store/care.py",
        "            if copy in broken or not copy.exists():\n",
        "            if not copy.exists():\n",
        "test_stores.py::TestMerge",
    ),
    Protection(
        10,
        "what is damaged is kept aside",
        "store/care.py",
        "    write_whole(place, path.read_bytes())\n",
        "    pass\n",
        "test_stores.py::TestDamage",
    ),
    Protection(
        10,
        "a merge keeps the rows of its target",
        _SEGMENTS,
        "    return found + mine[taken:]\n",
        "    return found\n",
        "test_stores.py::TestMerge::test_no_row_of_the_target_is_lost",
    ),
    Protection(
        11,
        "leftovers are cleaned",
        _STORE,
        "            leftover.unlink(missing_ok=True)\n",
        "            pass\n",
        "test_segments.py::TestOneWriter",
    ),
    Protection(
        13,
        "the whole and a shard exclude each other",
        _LOCK,
        "            if _side_by_side(part, other):\n",
        "            if True:\n",
        "test_segments.py::TestOneWriter",
    ),
    Protection(
        14,
        "a pool whose worker died is replaced",
        "engine/running/workers.py",
        "        self._pool = _new_pool(self._count)\n",
        "",
        "test_workers.py::TestWorkers::test_one_that_is_killed_from_outside_is_replaced",
    ),
    Protection(
        14,
        "a death is seen where the pool does not",
        "engine/running/workers.py",
        "            if self._somebody_died():\n",
        "            if False:\n",
        "test_workers.py::TestWorkers::test_a_death_is_seen_while_others_work",
    ),
    Protection(
        14,
        "where no pool can be made the tasks end",
        "engine/running/workers.py",
        "        except Exception as error:  # no pool can be made\n",
        "        except ZeroDivisionError as error:\n",
        "test_workers.py::TestWorkers::test_where_no_other_pool_can_be_made_that_is_told",
    ),
    Protection(
        15,
        "suspects run alone",
        "engine/running/workers.py",
        "            if self._suspects and not self._running:\n",
        "            if self._suspects:\n",
        "test_workers.py::TestWorkers::test_what_runs_beside_is_not_blamed",
    ),
    Protection(
        15,
        "a task that kills its worker is split",
        "engine/running/executors.py",
        "                if type(error).__name__ not in KILLED:\n",
        "                if True:\n",
        "test_workers.py::test_a_task_that_kills_its_worker_is_split",
    ),
    Protection(
        16,
        "the code is in the settings",
        _DEVICES,
        '        "code": digest_of_code(PACKAGE),\n',
        "",
        "test_identity.py::test_the_code_of_the_package_is_part_of_every_store",
    ),
    *(
        Protection(
            17,
            f"{name} in the settings",
            _DEVICES,
            text,
            "",
            "test_devices.py::test_the_environment_says_all_that_bits_depend_on",
        )
        for name, text in {
            "the platform": '        "platform": here.client.platform_version,\n',
            "the device": '        "device": here.device_kind,\n',
            "the CPU": '        "cpu_instructions": " ".join(simd["SIMD Extensions"]["found"]),\n',
            "the flags": '        "xla_flags": os.environ.get("XLA_FLAGS", ""),\n',
            "JAX's settings": '        "settings": settings(),\n',
        }.items()
    ),
    Protection(
        17,
        "settings are compared",
        _STORE,
        "        if others and not mix:\n",
        "        if False:\n",
        "test_segments.py test_extended.py::TestExtended",
    ),
    Protection(
        18,
        "the format is compared",
        _SEGMENTS,
        '            if about["format"] > FORMAT:\n',
        "            if False:\n",
        "test_segments.py",
    ),
    Protection(
        18,
        "an older store is refused",
        _STORE,
        '        if (self.folder / "settings.json").exists()',
        '        if False and (self.folder / "settings.json").exists()',
        "test_segments.py",
    ),
    Protection(
        19,
        "half the lanes where memory runs out",
        "engine/running/lanes.py",
        "        if not out_of_memory(error):\n",
        "        if True:\n",
        "test_memory.py",
    ),
    Protection(
        20,
        "a device that is not there is told",
        _DEVICES,
        "        if _backends():\n",
        "        if True:\n",
        "test_devices.py::test_a_device_that_is_not_there",
    ),
    Protection(
        21,
        "a trace is read whole or not at all",
        _TRACES,
        "    if digest != _digest(path, rest):\n",
        "    if False:\n",
        "test_traces.py::test_a_broken_file_is_made_anew",
    ),
    Protection(
        21,
        "a trace's digest tells whose it is",
        _TRACES,
        "    return sha256(path.name.encode() + content).digest()\n",
        "    return sha256(content).digest()\n",
        "test_traces.py::test_anothers_file_is_not_read",
    ),
    Protection(
        21,
        "JAX's settings tell a trace",
        _TRACES,
        "    told.write(repr((environment(), _libraries(), sorted(settings.items()))).encode())\n",
        "    told.write(repr((environment(), _libraries())).encode())\n",
        "test_traces.py::test_other_settings_of_jax_are_another_trace",
    ),
    Protection(
        21,
        "the package's code tells a trace",
        _TRACES,
        "    told.write(repr((environment(), _libraries(), sorted(settings.items()))).encode())\n",
        "    told.write(repr(sorted(settings.items())).encode())\n",
        "test_traces.py::test_files_that_are_edited_are_seen_at_once_and_by_the_next_process",
    ),
    Protection(
        21,
        "names tell no own function",
        _TRACES,
        '            if module.split(".")[0] not in TOLD_BY_NAME:\n',
        "            if not module:\n",
        "test_traces.py::test_what_a_name_does_not_tell_is_made_each_time",
    ),
    Protection(
        21,
        "no class that was made of one of optax's",
        _TRACES,
        "            if make(*arguments) is thing:\n",
        "            if True:\n",
        "test_traces.py::test_what_a_name_does_not_tell_is_made_each_time",
    ),
    Protection(
        21,
        "no trace of a package that was changed",
        _TRACES,
        "    if not is_as_written():\n",
        "    if False:\n",
        "test_traces.py::test_nothing_is_read_or_written_once_the_package_was_changed",
    ),
    Protection(
        21,
        "no trace of one that was changed before",
        _TRACES,
        "    if path is None or not was_always_so() or _path(asked) != path:\n",
        "    if path is None or _path(asked) != path:\n",
        "test_traces.py::test_nothing_is_read_or_written_once_the_package_was_changed",
    ),
    Protection(
        21,
        "no trace of what changed meanwhile",
        _TRACES,
        "    if path is None or not was_always_so() or _path(asked) != path:\n",
        "    if path is None or not was_always_so():\n",
        "test_traces.py::test_what_changes_while_it_is_made_is_not_kept",
    ),
    Protection(
        21,
        "files that were edited are seen",
        _LOADED,
        "    found = _has_its_files() and _holds_the_same()\n",
        "    found = _holds_the_same()\n",
        "test_traces.py::test_files_that_are_edited_are_seen_at_once_and_by_the_next_process",
    ),
    Protection(
        21,
        "what was there is noted once",
        _LOADED,
        "    if not _noted:\n",
        "    if True:\n",
        "test_traces.py::test_reloading_the_package_is_no_way_around",
    ),
    Protection(
        23,
        "a run ends with all of its state, where another goes on from there",
        "training/steps.py",
        "protocol, keep=pause is not None)\n",
        "protocol, keep=False)\n",
        "test_trajectories.py::test_each_has_the_bits_of_itself_alone",
    ),
    Protection(
        23,
        "optimizers that are not linear begin anew",
        "protocols.py",
        "        if type(self) is not Protocol or not self.rule.linear:\n",
        "        if type(self) is not Protocol:\n",
        "test_trajectories.py::TestWhatIsShared",
    ),
    Protection(
        23,
        "protocols of one's own begin anew",
        "protocols.py",
        "        if type(self) is not Protocol or not self.rule.linear:\n",
        "        if not self.rule.linear:\n",
        "test_trajectories.py::TestWhatIsShared",
    ),
    Protection(
        23,
        "none goes on whose measurements on the way read where it stops",
        _TRAJECTORIES,
        " or not protocol.limits or _reads_limits(curve):\n",
        " or not protocol.limits:\n",
        "test_trajectories.py::TestWhatIsShared",
    ),
    Protection(
        23,
        "none goes on from one that stops later",
        _TRAJECTORIES,
        "            if all(before <= after for before, after in pairs):\n",
        "            if any(before <= after for before, after in pairs):\n",
        "test_trajectories.py::TestWhatIsShared",
    ),
    Protection(
        23,
        "none goes on from another start",
        _TRAJECTORIES,
        "    return run.seed, data, network,",
        "    return data, network,",
        "test_trajectories.py",
    ),
    Protection(
        23,
        "workers are told which runs share a trajectory",
        "engine/running/executors.py",
        "                    run is one[0],\n",
        "                    True,\n",
        "test_trajectories.py::test_workers_train_whole_ones",
    ),
    Protection(
        25,
        "at least two lanes on an accelerator",
        "engine/planning/lane_counts.py",
        "    lanes = np.arange(2, max(2, min(most, trajectories)) + 1)\n",
        "    lanes = np.arange(1, max(1, min(most, trajectories)) + 1)\n",
        "test_planning.py::TestPlan",
    ),
    Protection(
        39,
        "a store of other runs is refused",
        _STORED,
        "        if not found:\n",
        "        if False:\n",
        "test_store.py::TestStore::test_other_runs_alone_are_refused_with_what_differs",
    ),
    Protection(
        41,
        "the number of threads in the settings",
        _DEVICES,
        '        **({"threads": threads()} if here.platform == "cpu" else {}),\n',
        "",
        "test_devices.py::TestCores",
    ),
    Protection(
        43,
        "a line's checksum covers what wrote its segment",
        _SEGMENTS,
        '    return sha256(f"{salt}{text}".encode()).hexdigest()[:32]\n',
        '    return sha256(f"{text}".encode()).hexdigest()[:32]\n',
        "test_segments.py::test_rows_that_changed_places_do_not_count",
    ),
    Protection(
        43,
        "a network's file says whose it is",
        "store/arrays.py",
        "    if whose != owner:\n",
        "    if False:\n",
        "test_stores.py::TestDamage",
    ),
    Protection(
        43,
        "a measurement is made of the network of its row",
        _STORED,
        "        name, network = run.name, self.lacking[run].row.network\n",
        "        name = run.name\n"
        "        network = next((self._store.folder / 'networks').glob(f'{name}-*')).stem[-20:]\n",
        "test_extended.py::TestExtended::test_a_kept_network_of_another_training_is_not_measured",
    ),
    Protection(
        44,
        "nobody is asked for a lock",
        "engine/tables/results.py",
        "        dataset[in_order].dump_to_store(H5NetCDFStore(file))\n",
        '        pass\n    return dataset.to_netcdf(engine="h5netcdf")\n',
        "test_store.py::TestStore::test_saving_asks_nobody_for_a_lock",
    ),
    Protection(
        45,
        "a run that raises ends with that",
        "engine/programs/jobs.py",
        "            raised.setdefault(i, error)\n",
        "            raise\n",
        "test_raised.py",
    ),
    Protection(
        45,
        "all that would have gone on from a run that raises are told",
        "engine/running/slots.py",
        "zip(all_raised(one.trajectory, mine), steps, strict=True)\n",
        "zip(all_raised(one.trajectory[:1], mine), steps[:1], strict=True)\n",
        "test_trajectories.py::test_all_of_one_that_raises_on_its_way_are_told",
    ),
    Protection(
        45,
        "all of a trajectory that cannot be drawn are told",
        "engine/running/slots.py",
        "                self.undrawn += all_raised(one, error)\n",
        "                self.undrawn += all_raised(one[:1], error)\n",
        "test_trajectories.py::test_all_of_one_that_cannot_be_drawn_are_told",
    ),
    Protection(
        46,
        "tasks that were dropped are told",
        "engine/running/executors.py",
        "                if stopping:\n",
        "                if True:\n",
        "test_workers.py",
    ),
    Protection(
        46,
        "patience",
        "engine/running/executors.py",
        "                elif monotonic() - last > patience:\n",
        "                elif False:\n",
        "test_workers.py::test_all_workers_gone",
    ),
    Protection(
        47,
        "workers watch their parent",
        "engine/running/workers.py",
        "    Thread(target=watch, daemon=True).start()\n",
        "    pass\n",
        "test_workers.py::test_they_end_with_their_parent",
    ),
    Protection(
        48,
        "workers take the sweep's number of threads",
        "engine/running/executors.py",
        "    split_among(threads)\n",
        "",
        "test_devices.py::TestCores",
    ),
    Protection(
        16,
        "own optimizers are told at the width of a run",
        "specs/optimizers.py",
        '        return {**found, "computes": self.digest(**sizes)} if digests else found\n',
        '        return {**found, "computes": self.digest()} if digests else found\n',
        "test_identity.py::test_what_computes_something_else_is_another_run",
    ),
    Protection(
        16,
        "held-out points are told by the run's own key apart from theirs",
        "specs/data/distributions.py",
        "                return spec.draw_test(key, data_key, self.d)\n",
        "                return spec.draw_test(key, key, self.d)\n",
        "test_identity.py::test_what_computes_something_else_is_another_run",
    ),
    Protection(
        16,
        "own optimizers are told by gradients apart from weights",
        "specs/optimizers.py",
        "(spec.transformation(), gradient, state, params, **more)",
        "(spec.transformation(), params, state, params, **more)",
        "test_identity.py::test_what_computes_something_else_is_another_run",
    ),
    Protection(
        16,
        "measurements are told by what they are given, and where",
        "measurements/base.py",
        '            found |= {"padded": self.padded, "on_host": self.on_host}\n',
        "            pass\n",
        "test_identity.py::test_what_computes_something_else_is_another_run",
    ),
    Protection(
        16,
        "equal values of other types are others",
        "specs/base.py",
        "        return tuple((value, types_of(value)) for value in compared)\n",
        "        return tuple(compared)\n",
        "test_identity.py::test_equal_values_of_other_types_are_others",
    ),
    Protection(
        16,
        "programs are told apart by values of other types",
        "specs/base.py",
        "            static.append((f.name, value, types_of(value)))\n",
        "            static.append((f.name, value, None))\n",
        "test_identity.py::test_equal_values_of_other_types_are_others",
    ),
    Protection(
        16,
        "measurements are told by as many held-out points as there are",
        "runs/run.py",
        '        found["tests"] = _tests(run.data)\n',
        "        pass\n",
        "test_identity.py::test_what_computes_something_else_is_another_run",
    ),
    Protection(
        16,
        "own draws are told by their held-out points, too",
        "specs/data/distributions.py",
        '        elif "draw_held_out" not in self._given and self._draws(HELD_OUT):\n',
        "        elif False:\n",
        "test_identity.py::test_what_computes_something_else_is_another_run",
    ),
    Protection(
        16,
        "what is not compiled is told at its own numbers",
        "specs/identity.py",
        "        told = spec if spec.told_by_values else any_numbers(spec)\n",
        "        told = any_numbers(spec)\n",
        "test_identity.py::test_what_computes_something_else_is_another_run",
    ),
    Protection(
        16,
        "what is not compiled is told by two seeds",
        "specs/identity.py",
        "_SEEDS = (0, 1)\n",
        "_SEEDS = (0,)\n",
        "test_identity.py::test_what_computes_something_else_is_another_run",
    ),
    Protection(
        16,
        "own functions are looked at again at all sizes of a sweep",
        "specs/identity.py",
        " for one in dict.fromkeys((first, used))\n",
        " for one in (first,)\n",
        "test_changed.py::test_a_function_that_has_changed_at_another_size_is_refused",
    ),
    Protection(
        16,
        "a run forgets what its functions computed",
        "specs/same.py",
        "        if found is None or found[0] is not now:\n",
        "        if found is None:\n",
        "test_changed.py::test_what_is_forgotten_is_no_longer_in_a_run",
    ),
    Protection(
        16,
        "workers compare what own functions compute",
        "engine/running/executors.py",
        "        _require_same_functions(common)\n",
        "",
        "test_trajectories.py::test_workers_whose_functions_compute_something_else_are_refused",
    ),
    Protection(
        16,
        "rows of measurements of one name stay apart",
        "engine/tables/records.py",
        "    if len(whole) == sum(map(len, measured.values())):\n",
        "    if True:\n",
        "test_reading.py::TestReading::test_measurements_of_one_name_have_a_row_each",
    ),
    Protection(
        23,
        "sizes share a program only where their optimizer leaves padding alone",
        "engine/planning/plan.py",
        "    if all(is_inert(rule, least, (union.k, union.d)) for rule in rules):\n",
        "    if True:\n",
        "test_inert.py",
    ),
    Protection(
        50,
        "a finished store is not written",
        _DRIVER,
        "        if stored is not None and len(rows) < len(mine):\n",
        "        if stored is not None:\n",
        "test_store.py::TestStore::test_a_folder_that_cannot_be_written_is_told_before_training",
    ),
    Protection(
        51,
        "measurements that are missing are seen",
        "engine/tables/records.py",
        "            lacks.append(i)\n",
        "            pass\n",
        "test_extended.py::TestExtended::test_by_measurements",
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Returns 1 where the removal of a protection was not noticed."""
    wanted = {int(number) for number in arguments}
    chosen = [one for one in PROTECTIONS if not wanted or one.fault in wanted]
    print("| # | removed | tests fail |\n| --- | --- | --- |", flush=True)
    unnoticed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for one, noticed in zip(chosen, pool.map(noticed_without, chosen), strict=True):
            unnoticed += noticed != "yes"
            print(f"| {one.fault} | {one.what} | {noticed} |", flush=True)
    return int(unnoticed > 0)


def noticed_without(one: Protection) -> str:
    """Whether the tests fail in a copy without the protection."""
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".*_cache", "__pycache__", "results", "docs")
        shutil.copytree(ROOT, copy, ignore=ignored)
        path = copy / "jaxkkt" / one.file
        text = path.read_text()
        if text.count(one.text) != 1:
            return f"NOT FOUND in {one.file}"
        path.write_text(text.replace(one.text, one.without))
        tests = [f"tests/{test}" for test in one.tests.split()]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-m", "", *tests]
        environ = os.environ | {"PYTHONPATH": str(copy)}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environ, capture_output=True, text=True, timeout=600
            )
        except subprocess.TimeoutExpired:
            return "yes"  # what waits for ever is seen
        if done.returncode == 1:
            return "yes"
        return "NO" if done.returncode == 0 else f"NOT RUN: {done.stdout[-200:]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
