"""Public test doubles: a simulated transport, recorded nodes, a fake supervisor and fake ranks.

Checks two nodes that do not exist, over the real protocol:

    import asyncio
    from aboard.doctor.host import subject as host
    from aboard.doctor.reach import subject as reach
    from aboard.core.cluster.cluster import Cluster
    from aboard.core.cluster.node import Node
    from aboard.engine.check.check_cluster import check_cluster
    from aboard.testing import SimulatedTransport, run_simulator

    async def check_simulated():
        cluster = Cluster(nodes=(Node(name="n1"), Node(name="n2")))
        subjects = (reach.SUBJECT, host.SUBJECT)
        async with run_simulator() as path:
            return await check_cluster(cluster, subjects, transport_for=lambda node: SimulatedTransport(path))

    report = asyncio.run(check_simulated())
"""

from aboard.testing.fake_rank import FakeRank
from aboard.testing.fake_supervisor import FakeNodeFaults, FakeSupervisor
from aboard.testing.recorded_node import load_recording
from aboard.testing.simulated_transport import SimulatedTransport, run_simulator

__all__ = ["FakeNodeFaults", "FakeRank", "FakeSupervisor", "SimulatedTransport", "load_recording", "run_simulator"]
