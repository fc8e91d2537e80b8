"""What training with all data in one place reaches: worked out beside the run, in a thread of the demo's own process."""

from __future__ import annotations

import threading
from dataclasses import replace

from fedrep_cli.demo_settings import DemoSettings
from fedrep_trainers.build import build_trainer
from fedrep_trainers.settings import TrainerSettings


class Reference:
    """The same model and number of steps; leaving the context before the end gives it up."""

    def __init__(self, settings: DemoSettings) -> None:
        self._settings = replace(settings, silos=1)
        self._thread = threading.Thread(target=self._train, name="reference", daemon=True)
        self._given_up = threading.Event()
        self._accuracy: float | None = None
        self._problem: Exception | None = None

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        self._given_up.set()
        if self._thread.ident is not None:
            self._thread.join()

    def start(self) -> None:
        """A second time it does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def accuracy(self) -> float | None:
        """Waits for it, if the run was faster."""
        self.start()
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        return self._accuracy

    def _train(self) -> None:
        try:
            trainer = build_trainer(TrainerSettings(**self._settings.trainer(0)))
            model = trainer.initial()
            for number in range(1, self._settings.rounds + 1):
                if self._given_up.is_set():
                    return
                model = trainer.train(model, number).model
            self._accuracy = trainer.evaluate(model).accuracy
        except Exception as problem:
            self._problem = problem
