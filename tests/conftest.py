"""Two test workers share two cores: one thread each is faster than two threads each."""

import torch

torch.set_num_threads(1)
