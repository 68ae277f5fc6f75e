"""The memory of votes: the meter by hand, the plain forms against ours, and what ours save."""

import pytest
import torch

from mspcaps.bench.votes import LiveBytes, bench_votes, peak_bytes, plain_attention, plain_votes
from mspcaps.capsules import InvertedAttentionRouting
from mspcaps.capsules.votes import cast_votes
from mspcaps.cli import main
from mspcaps.errors import MspcapsError


def test_the_meter_counts_what_is_alive_and_no_view_twice() -> None:
    x = torch.empty(100, device="meta")
    with LiveBytes() as live:
        y = x + 1  # 400 bytes
        z = y.view(10, 10).transpose(0, 1)
        assert live.now == 400
        del y
        assert live.now == 400, "the view holds it"
        z = z.sum()
        assert live.now == 4 and live.peak == 404
        del z
    assert live.now == 0
    leaf = torch.empty(100, device="meta", requires_grad=True)
    assert peak_bytes(leaf.exp) == 400 + 4 + 4 + 400, "what exp gave, its sum, the gradient of that, and of the leaf"


def test_the_plain_forms_compute_the_same() -> None:
    torch.manual_seed(0)
    u, w = torch.randn(5, 2, 3, 4), torch.randn(5, 4, 6, 7)
    torch.testing.assert_close(plain_votes(u, w), cast_votes(u, w), rtol=1e-5, atol=1e-5)
    routing = InvertedAttentionRouting(2, 3, (2, 2), stride=2)
    poses, outputs = torch.randn(2, 6, 5, 2, 16), torch.randn(2, 3, 2, 3, 16)
    torch.testing.assert_close(plain_attention(routing, poses, outputs), routing(poses, outputs), rtol=1e-4, atol=1e-5)


def test_no_routing_takes_half_of_what_the_plain_form_takes() -> None:
    found = bench_votes(batch_size=4, img_size=20)
    assert {one.model for one in found} == {"capsnet", "deepcaps", "idp_capsnet"} and len(found) == 5
    assert all(one.ours_bytes < 0.5 * one.plain_bytes for one in found)
    maps = [one for one in found if one.routing in ("lower", "upper")]
    assert all(one.ours_bytes < one.votes_bytes for one in maps), "they are never there all at once"
    with pytest.raises(MspcapsError, match="0"):
        bench_votes(0)


def test_the_command_states_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "votes", "--batch-size", "2"]) == 0
    said = capsys.readouterr().out
    assert all(f" {name}, " in said for name in ("capsnet", "deepcaps", "idp_capsnet"))
