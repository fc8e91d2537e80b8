"""Real daemons and a real server over mTLS: they train, agree to the last bit, and the evaluator follows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.services.federation import Federation, run_scenario


def test_a_federation_trains_and_every_silo_holds_the_servers_model(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=4)

    async def scenario() -> None:
        async with federation.serving() as server:
            await federation.create_run(rounds=5)
            daemons = [federation.daemon(number) for number in range(4)]
            await federation.run_silos(daemons)
            summary = await federation.summary()
            assert (summary.state, summary.rounds_applied, summary.model_version) == ("finished", 5, 5)
            model = server.coordinator.run_named("run").model.state
            for daemon in daemons:
                assert daemon.model is not None
                assert np.array_equal(daemon.model.vector, model.vector)
                assert (daemon.model.version, daemon.model.chain) == (5, model.chain)

    run_scenario(scenario())


def test_processes_train_together_as_an_operator_starts_them(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)

    async def scenario() -> None:
        server = federation.start_server_process()
        await server.wait_until_serving()
        await federation.create_run(rounds=2)
        silos = [federation.start_silo_process(number) for number in range(3)]
        for silo in silos:
            assert await silo.wait() == 0, silo.log.read_text()
        assert (await federation.summary()).rounds_applied == 2
        assert server.terminate() == 0

    run_scenario(scenario())
