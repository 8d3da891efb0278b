"""What the machine's GPUs do during a run, as NVIDIA's management library tells it."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

#: Seconds between two samples.
INTERVAL = 0.5

#: Seconds since the run began; utilisation of the busiest GPU (%); memory in use (bytes) and power (W) of all of them.
Sample = tuple[float, float, float, float]


class Watch:
    """Samples the GPUs while a block runs; `samples` stays empty where there is no NVIDIA GPU.

    with Watch() as watch:
        ...
    watch.samples
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._nvml: Any = None

    def __enter__(self) -> Watch:
        try:
            import pynvml

            pynvml.nvmlInit()
        except (ImportError, OSError):
            return self
        except pynvml.NVMLError:  # no driver, or no GPU
            return self
        self._nvml = pynvml
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._nvml.nvmlShutdown()

    def _watch(self) -> None:
        nvml = self._nvml
        gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        begin = time.monotonic()
        while gpus and not self._ended.wait(INTERVAL):
            try:
                busy = max(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu for gpu in gpus)
                memory = sum(nvml.nvmlDeviceGetMemoryInfo(gpu).used for gpu in gpus)
            except nvml.NVMLError:  # a GPU in parts (MIG) tells less
                return
            self.samples.append((time.monotonic() - begin, float(busy), float(memory), self._power(gpus)))

    def _power(self, gpus: list[Any]) -> float:
        try:
            return float(sum(self._nvml.nvmlDeviceGetPowerUsage(gpu) for gpu in gpus)) / 1000
        except self._nvml.NVMLError:
            return 0.0
