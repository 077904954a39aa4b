"""An executor for tests."""

from concurrent.futures import Future
from types import SimpleNamespace


class Inline:
    """The least that an executor can be: no thread, and tasks without callbacks."""

    def __init__(self):
        self.tasks = []

    def submit(self, function, *args):
        try:
            outcome = function(*args)
            task = SimpleNamespace(done=lambda: True, result=lambda: outcome)
        except ValueError as error:
            future = Future()
            future.set_exception(error)
            task = SimpleNamespace(done=lambda: True, result=future.result)
        task.cancelled = False
        task.cancel = lambda: setattr(task, "cancelled", True)
        self.tasks.append(task)
        return task
