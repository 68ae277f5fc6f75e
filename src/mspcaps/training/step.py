"""One training step in three forms with one meaning: eager, compiled, captured in a CUDA graph.

A step is: take the next row of the epoch's plan, gather and augment the images on the device, forward, backward,
AdamW. Everything it reads that changes (position in the epoch, learning rate, plan) is a tensor on the device, so that
the captured form replays without the CPU.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Literal

import torch
from torch import Tensor

from mspcaps.data.augment import augmented
from mspcaps.errors import MspcapsError
from mspcaps.kernels import fuse
from mspcaps.models import Model
from mspcaps.training.distributed import World
from mspcaps.training.loader import Plan
from mspcaps.training.optimizer import FlatAdamW, adamw_update

Form = Literal["eager", "compiled", "captured"]


def batch_loss(model: Model, plan: Plan) -> Tensor:
    """The model's own loss on the batch at the plan's position."""
    index = plan.order.index_select(0, plan.position)[0]  # [b]
    draws = plan.draws.index_select(0, plan.position)[0]  # [b, DRAWS]
    x = augmented(plan.images, index, draws, plan.augment)
    return model.training_loss(x, plan.labels[index], model.criterion)


class Step:
    """Takes steps on the plan; `loss_sum` adds up the losses since it was last set to zero."""

    def __init__(
        self, model: Model, plan: Plan, optimizer: FlatAdamW, form: Form, autocast: torch.dtype | None,
        world: World | None = None, fused: bool = True,
    ) -> None:  # fmt: skip
        self.model, self.plan, self.optimizer, self.autocast = model, plan, optimizer, autocast
        self.twin = fuse(model) if fused and form != "eager" and plan.images.is_cuda else model
        self.world = world or World()
        self.device = plan.images.device
        self.loss_sum = torch.zeros((), device=self.device)
        self.loss: Callable[[Model, Plan], Tensor] = batch_loss
        if form != "eager":
            self.loss, optimizer.update = compiled(batch_loss), compiled(adamw_update)
        self.chunk = plan.captured_steps if form == "captured" else 1
        self.graph: torch.cuda.CUDAGraph | None = None

    def gradients(self) -> tuple[Tensor, list[Tensor]]:
        """-> loss of this process's share of the batch, flat gradients of the whole batch."""
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None, cache_enabled=False):
            loss = self.loss(self.twin, self.plan)
        gradients = self.optimizer.flat_gradients(torch.autograd.grad(loss, self.optimizer.params, allow_unused=True))
        self.world.average(gradients)
        return loss, gradients

    def one(self) -> None:
        """One step in Python: what the graph records."""
        loss, gradients = self.gradients()
        self.optimizer.step(gradients)
        self.loss_sum += loss.detach()
        self.plan.position += 1

    def __call__(self) -> int:
        """Take the next steps; returns how many."""
        self.plan.advance()
        if self.graph is not None:
            self.graph.replay()
        else:
            self.one()
        return self.chunk

    def capture(self) -> None:
        """Record `chunk` steps. The warm-up before it changes the state, so the state is put back."""
        kept = [(t, t.clone()) for t in self.state()]

        def steps() -> None:
            for _ in range(self.chunk):
                self.one()

        def warm_up() -> None:
            for _ in range(3):
                self.plan.position.zero_()  # a plan may have no more than one row
                self.one()

        self.graph = captured(steps, warm_up)
        for tensor, copy in kept:
            tensor.copy_(copy)
        self.optimizer.refresh()

    def state(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        flat = [t for g in self.optimizer.groups for t in (g.master, g.m, g.v)]
        return [*flat, self.optimizer.steps, *self.model.buffers(), self.loss_sum, self.plan.position]


def captured(work: Callable[[], None], warm_up: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """`work` as a CUDA graph that may run beside other graphs of this process.

    cuBLAS keeps one workspace per thread and stream, and every backward pass runs in the same thread: graphs recorded
    one after the other would share it, and can corrupt each other's products when they run at the same time. So each
    graph begins with no workspace, gets one in its own memory, and leaves none behind.
    """
    forget_workspaces = torch._C._cuda_clearCublasWorkspaces
    forget_workspaces()
    stream = recording_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warm_up()  # compilers and cuDNN choose their kernels
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    forget_workspaces()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    forget_workspaces()
    return graph


@cache
def recording_stream(device: int) -> torch.cuda.Stream:
    """The one stream per device on which graphs are recorded.

    PyTorch hands out 32 streams in turn: with a new one for every graph, the 33rd would be the stream of a run that is
    still going, and what that run starts while a graph is recorded would end up in the graph.
    """
    return torch.cuda.Stream(device)


@cache
def compiler_works() -> bool:
    """Whether torch.compile has what it needs; on a CPU that is a C++ compiler."""
    try:
        torch.compile(torch.nn.Softplus())(torch.zeros(1))
    except torch._dynamo.exc.BackendCompilerFailed:
        return False
    return True


_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled once per process: a second model of the same kind reuses the code."""
    # A sweep meets many models and data sets in one process; of newer PyTorch every thread has a limit of its own.
    torch._dynamo.config.recompile_limit = 256
    if function not in _compiled:
        _compiled[function] = wrap_compile_errors(torch.compile(function, fullgraph=True, dynamic=False))
    return _compiled[function]


def wrap_compile_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the compiler refuses is in the model, and the eager form takes it."""

    @wraps(function)
    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except torch._dynamo.exc.BackendCompilerFailed:  # a compiler of this machine, not the model
            raise
        except torch._dynamo.exc.TorchDynamoException as error:
            why = str(error).strip().partition("\n")[0]
            raise MspcapsError(f"the model cannot be compiled: {why}; train it with --form eager") from error

    return call
