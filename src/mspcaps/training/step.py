"""One training step, the same in three engines: eager, compile, cudagraph.

A step takes the next row of the epoch, gathers and augments its images on the device, and runs forward, backward and
optimizer. Whatever changes between steps (position in the epoch, learning rate, dropout keys) is a tensor on the
device, so a CUDA graph replays without the CPU.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, nn

from mspcaps.errors import MspcapsError
from mspcaps.kernels import fuse
from mspcaps.models import Model
from mspcaps.models.layers import Dropout, dropout_keys, use_channels_last
from mspcaps.training.average import WeightAverage
from mspcaps.training.device import Engine, in_precision, working_precision
from mspcaps.training.distributed import World, join_shares
from mspcaps.training.loader import Loader
from mspcaps.training.objective import check_soft_targets, make_loss
from mspcaps.training.optimizers import FlatOptimizer
from mspcaps.training.recipe import Recipe

TORCH_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
WITH_DROPOUT = (nn.MultiheadAttention, nn.RNNBase)  # which have a rate instead of a layer


class Step:
    """Trains on the loader's batches; `loss_sum` is the sum of the losses since it was last zeroed. `fused`: with our
    kernels where we have any."""

    def __init__(
        self, model: Model, loader: Loader, recipe: Recipe, engine: Engine, world: World | None = None,
        fused: bool = True,
    ) -> None:  # fmt: skip
        refuse_torch_dropout(model)
        check_soft_targets(recipe, model, loader)
        use_channels_last(model)
        self.model, self.loader, self.world = model, loader, world or World()
        self.device = loader.images.device
        self.autocast = working_precision(self.device, recipe.precision)
        self.optimizer = FlatOptimizer(model, recipe, self.autocast or torch.float32)
        self.loss_sum = torch.zeros((), device=self.device)
        dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
        self.keys = torch.zeros(len(dropouts) + bool(recipe.adversary), dtype=torch.int64, device=self.device)
        for number, layer in enumerate(dropouts):
            layer.key, layer.share = self.keys[number : number + 1], self.world.rank
        compiled = compiler_of(engine)
        self.fused = fuse(model) if fused and engine != "eager" and self.device.type == "cuda" else model
        self.dropout_keys, self.join_shares = compiled(dropout_keys), compiled(join_shares)
        self.optimizer.update = compiled(self.optimizer.update)
        self.loss = make_loss(recipe, model, loader, self.keys[-1:], self.world.rank, compiled)
        self.average = WeightAverage(model, self.optimizer, recipe.ema, compiled) if recipe.ema else None
        self.averages = self.average.tensors if self.average else {}  # by name
        self.evaluated = self.average.model if self.average else model
        self.steps_per_replay = loader.steps_per_replay if engine == "cudagraph" else 1
        self.graph: torch.cuda.CUDAGraph | None = None

    def gradients(self) -> tuple[Tensor, list[Tensor]]:
        """-> the loss on this process's share of the batch, the flat gradients of the whole batch."""
        if len(self.keys):
            self.keys.copy_(self.dropout_keys(self.loader.epoch_key, self.loader.step_number, len(self.keys)))
        with in_precision(self.device, self.autocast):
            loss = self.loss(self.fused, self.loader)
        gradients = self.optimizer.flat_gradients(torch.autograd.grad(loss, self.optimizer.params, allow_unused=True))
        return loss, self.world.all_reduce_mean(gradients, self.join_shares)

    def eager_step(self) -> None:
        """One step, run from Python; a graph records several of them."""
        loss, gradients = self.gradients()
        self.optimizer.step(gradients)
        if self.average:
            self.average.update()
        self.loss_sum += loss.detach()
        self.loader.position += 1

    def __call__(self) -> int:
        """Take the next steps and return how many."""
        self.loader.advance()
        if self.graph is not None:
            self.graph.replay()
        else:
            self.eager_step()
        return self.steps_per_replay

    def capture(self) -> None:
        """Record `steps_per_replay` steps. The warm-up before that changes the state, which is restored afterwards."""
        saved = [(t, t.clone()) for t in self.state()]

        def steps() -> None:
            for _ in range(self.steps_per_replay):
                self.eager_step()

        def warm_up() -> None:
            for _ in range(3):
                self.loader.position.zero_()  # an epoch may have a single step
                self.eager_step()

        self.graph = capture_graph(steps, warm_up)
        for tensor, copy in saved:
            tensor.copy_(copy)
        self.optimizer.refresh()

    def release(self) -> None:
        """Destroy a graph that sends messages: NCCL does not let a process leave the group before that."""
        if self.graph is not None and self.world.grouped:
            torch.cuda.current_stream(self.device).synchronize()
            self.graph.reset()
            self.graph = None

    def statistics(self) -> list[Tensor]:
        """The model's buffers and their averages."""
        buffers = dict(self.model.named_buffers())
        return [*buffers.values(), *(self.averages[name] for name in buffers if name in self.averages)]

    def state(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        flat = [t for group in self.optimizer.groups for t in (group.master, *group.state)]
        averages = self.average.averages if self.average else []
        return [*flat, *averages, self.optimizer.steps, *self.model.buffers(), self.loss_sum, self.loader.position]


def refuse_torch_dropout(model: Model) -> None:
    for name, module in model.named_modules():
        if isinstance(module, TORCH_DROPOUT) or (isinstance(module, WITH_DROPOUT) and module.dropout > 0):
            raise MspcapsError(
                f"{name} is a {type(module).__name__} of PyTorch, whose masks a resumed run cannot reproduce: use "
                "mspcaps.models.layers.Dropout"
            )


def capture_graph(work: Callable[[], None], warm_up: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """`work` as a CUDA graph that may run beside other graphs of this process.

    cuBLAS keeps one workspace per thread and stream, and all backward passes run in the same thread: graphs recorded
    one after the other would share it and could corrupt each other's products when replayed at the same time. So the
    workspaces are cleared before and after: each graph allocates one in its own memory.
    """
    clear_workspaces = torch._C._cuda_clearCublasWorkspaces
    clear_workspaces()
    stream = capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warm_up()  # the compiler and cuDNN choose their kernels
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    clear_workspaces()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    clear_workspaces()
    return graph


@cache
def capture_stream(device: int) -> torch.cuda.Stream:
    """The one stream per device on which graphs are recorded.

    PyTorch hands out 32 streams in turn. With a new one for every graph, the 33rd could be the stream of another run,
    whose kernels would then be recorded into the graph.
    """
    return torch.cuda.Stream(device)


def compiler_of(engine: Engine) -> Callable[[Any], Any]:
    """torch.compile for every engine but eager, which takes a function as it is."""
    return compile_once if engine != "eager" else lambda function: function


_compile_cache: dict[Callable[..., Any], Callable[..., Any]] = {}


def compile_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, once per process: a second model of the same kind reuses the code. If the compiler refuses
    the model, the error says to use the eager engine."""
    # A sweep trains many models on many data sets in one process. Set on every call: newer PyTorch has one per thread.
    torch._dynamo.config.recompile_limit = 256
    compiled = torch.compile(function, fullgraph=True, dynamic=False)

    @wraps(function)
    def call(*args: Any) -> Any:
        try:
            return compiled(*args)
        except torch._dynamo.exc.BackendCompilerFailed:  # this machine's compiler is at fault, not the model
            raise
        except torch._dynamo.exc.TorchDynamoException as error:
            why = str(error).strip().partition("\n")[0]
            raise MspcapsError(f"the model cannot be compiled: {why}; train it with --engine eager") from error

    return _compile_cache.setdefault(function, call)
