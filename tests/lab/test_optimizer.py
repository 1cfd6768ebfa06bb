"""Muon for the matrices of the blocks, AdamW for the rest: as each of them alone, and kept by checkpoints."""

import copy

import torch
from torch.optim import AdamW, Muon

from relattn_lab.model import LabModel
from relattn_lab.optimizer import BETAS, MuonAndAdamW
from tests.lab import small

RATE, DECAY = 0.02, 0.1


def learn(model: LabModel, optimizers, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        ids = small.tokens(2, 8, seed=step)
        model(ids, labels=ids).loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()


def assert_equal(one: LabModel, other: LabModel) -> None:
    for (name, weight), same in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, same), name


def test_each_weight_goes_where_its_optimizer_alone_takes_it():
    model = small.model("relative")
    other = copy.deepcopy(model)
    learn(model, [MuonAndAdamW(model, RATE, DECAY)], 3)
    is_matrix = {
        name: "blocks." in name and weight.dim() == 2 and "relative" not in name
        for name, weight in other.named_parameters()
    }
    matrices = [weight for name, weight in other.named_parameters() if is_matrix[name]]
    others = [weight for name, weight in other.named_parameters() if not is_matrix[name]]
    assert len(matrices) == 6 * len(model.blocks) and any(
        "relative_keys" in name for name, chosen in is_matrix.items() if not chosen
    )
    alone = [
        Muon(matrices, lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
        AdamW(others, lr=RATE, betas=BETAS, weight_decay=DECAY),
    ]
    learn(other, alone, 3)
    assert_equal(model, other)


def test_a_schedule_moves_both_rates():
    model = small.model("relative")
    optimizer = MuonAndAdamW(model, RATE, DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = copy.deepcopy(model)
    learn(model, [optimizer], 2)
    schedule.step()
    assert_equal(model, before)
    assert [group["lr"] for part in optimizer.parts for group in part.param_groups] == [0.0, 0.0]


def test_it_goes_on_where_its_state_was_taken():
    model = small.model("relative")
    optimizer = MuonAndAdamW(model, RATE, DECAY)
    learn(model, [optimizer], 2)
    other = copy.deepcopy(model)
    resumed = MuonAndAdamW(other, 1.0, 0.0)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    learn(model, [optimizer], 2, first=2)
    learn(other, [resumed], 2, first=2)
    assert_equal(model, other)
    resumed.param_groups[0]["lr"] = 0.5  # the groups are still those of the parts
    assert resumed.parts[0].param_groups[0]["lr"] == 0.5
