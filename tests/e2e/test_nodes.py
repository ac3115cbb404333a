"""Jobs on several nodes: what a rank sees of its node is as on a cluster."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from pathlib import Path

import pytest

from understudy import jobs
from understudy.emulation import emulate
from understudy.errors import UsageError
from understudy.jobs import Launch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor")]

LIGHT = Path(__file__).with_name("nodes") / "light_rank.py"
#: Two nodes of two; each rank tells the others where it is, over the process group.
TORCH = """
    import json, os, pathlib, socket, sys
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    seen = torch.cuda.get_device_properties(local)
    others = [i for i in range(torch.cuda.device_count()) if i != local]
    here = {
        "rank": dist.get_rank(),
        "local_rank": local,
        "local_world_size": int(os.environ["LOCAL_WORLD_SIZE"]),
        "group_rank": int(os.environ["GROUP_RANK"]),
        "host": socket.gethostname(),
        "uuid": str(seen.uuid),
        "bus": [seen.pci_domain_id, seen.pci_bus_id],
        "peers": [torch.cuda.can_device_access_peer(local, i) for i in others],
    }
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, here)
    node, _ = dist.new_subgroups(here["local_world_size"])
    model = torch.nn.Linear(64, 64, device="cuda")
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if here["rank"] == 0:
        pathlib.Path(sys.argv[1]).write_text(json.dumps(everyone))
    while True:
        loss = model(torch.ones(2, 64, device="cuda")).sum()
        dist.all_reduce(loss.detach(), group=node)
        loss.backward()
        optimizer.step()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))


def test_32_devices_in_4_hosts(tmp_path: Path) -> None:
    job = jobs.ad_hoc_job(str(LIGHT), [str(tmp_path)], launch=Launch(4, 8))
    emulation = emulate(job, "h100", log_path=tmp_path / "log", traces_dir=tmp_path / "traces")
    said = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(32)]
    for rank, here in enumerate(said):
        node, local = divmod(rank, 8)
        assert (here["rank"], here["local_rank"], here["group_rank"]) == (rank, local, node)
        assert (here["world_size"], here["local_world_size"]) == (32, 8)
        assert here["group_world_size"] == 4
        assert here["host"] == here["node"] == f"node{node}"
        assert here["addresses"] == ["127.0.0.1"] * 4 and here["master"] == "127.0.0.1"
        assert here["devices"] == 8
        assert here["peers"] == [int(other != local) for other in range(8)]
    assert len({here["uuid"] for here in said}) == len({here["bus_id"] for here in said}) == 32
    ranks = emulation.tables["ranks"].to_pylist()
    assert [(row["node"], row["local_rank"]) for row in ranks] == [divmod(r, 8) for r in range(32)]
    (world,) = [c for c in emulation.tables["communicators"].to_pylist() if len(c["members"]) > 1]
    assert world["members"] == list(range(32))


def test_two_nodes_of_two_with_torch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TORCH))
    job = jobs.ad_hoc_job(str(script), [str(tmp_path / "said.json")], launch=Launch(2, 2))
    job = dataclasses.replace(job, warmup=2, iterations=2)
    log = tmp_path / "log"
    emulation = emulate(job, "a100-sxm-40gb", log_path=log, traces_dir=tmp_path / "traces")
    said = json.loads((tmp_path / "said.json").read_text())
    assert [here["rank"] for here in said] == [0, 1, 2, 3]
    assert [here["local_rank"] for here in said] == [0, 1, 0, 1]
    assert {here["local_world_size"] for here in said} == {2}
    assert [here["group_rank"] for here in said] == [0, 0, 1, 1]
    assert [here["host"] for here in said] == ["node0", "node0", "node1", "node1"]
    assert len({here["uuid"] for here in said}) == 4
    assert [here["bus"] for here in said] == [[0, 1], [0, 2], [1, 1], [1, 2]]
    assert all(here["peers"] == [True] for here in said)
    # Gloo takes its address from the host name, and warns when there is none.
    assert "resolve" not in log.read_text()
    members = [c["members"] for c in emulation.tables["communicators"].to_pylist()]
    assert {(0, 1), (2, 3), (0, 1, 2, 3)} <= {tuple(m) for m in members}
    assert [row["node"] for row in emulation.tables["ranks"].to_pylist()] == [0, 0, 1, 1]


def test_a_node_has_at_most_16_devices(tmp_path: Path) -> None:
    job = jobs.ad_hoc_job(str(LIGHT), [str(tmp_path)], launch=Launch(1, 17))
    with pytest.raises(UsageError, match=r"17 processes per node.*at most 16.*--nnodes"):
        emulate(job, "h100", log_path=tmp_path / "log", traces_dir=tmp_path / "traces")
