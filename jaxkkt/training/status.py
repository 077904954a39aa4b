"""How a run stands or ended."""

from jaxkkt.numerics.outcomes import Outcome


class Status(Outcome):
    """How a run stands or ended. `describe` gives each a sentence and a remedy."""

    RUNNING = 0, "still training"
    CONVERGED = 1, "the log loss reached the target"
    STEP_CAP = 2, "the step cap came before the target log loss: raise max_steps"
    NOT_SEPARABLE = (
        3,
        "a sample was still misclassified at the step cap: use a wider network, more steps "
        "or another optimizer, look for equal points with opposite labels, and scale points to "
        "lengths from 1 to sqrt(d)",
    )
    DIVERGED = (
        4,
        "the loss became NaN or infinite, or a flow's leapt far above its first: lower the "
        "learning rate or delta, or use a wider network if no neuron is active on some sample; a "
        "flow leaps where labels cannot be fitted, as those of equal points with opposite labels",
    )
    STALLED = (
        5,
        "the gradient is exactly zero: no neuron is active on any sample that the loss weighs, or "
        "equal points with opposite labels cancel. Use a wider network, lower delta, or centre "
        "points and scale them to lengths from 1 to sqrt(d)",
    )
    LEFT_BALL = (
        6,
        "a neuron came to the edge of the ball around its start: this is the network there",
    )
    LEFT_AT_ONCE = (
        7,
        "the first step would have taken a neuron out of the ball around its start: lower the "
        "learning rate or delta, or ask for a larger ball",
    )
    SETTLED = 8, "robust training accuracy has stopped rising"
    PAUSED = 9, "at a moment at which it is measured: it goes on from here"
    RAISED = (
        10,
        "its data, optimizer or measurements raised an error, which `error` tells: mend what "
        "raised; the same sweep tries it again",
    )
    LAST_EPOCH = (
        11,
        "at the last epoch robust training accuracy had not stood still for `patience` epochs: "
        "raise epochs to see it settle",
    )


# A run that ended as its protocol meant it to; means are over these.
SUCCEEDED = (Status.CONVERGED, Status.LEFT_BALL, Status.SETTLED, Status.LAST_EPOCH)
