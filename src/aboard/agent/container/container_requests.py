"""Runs the commands of checks in containers, as the supervisor runs ranks; an image is unpacked once for all."""

from __future__ import annotations

import os
from collections.abc import Callable

from aboard.agent import frames, process_tree, run_directory
from aboard.agent.container import container_cleanup, container_command
from aboard.agent.container.image_unpack import ImageUnpacks

Start = Callable[[str], None]


class ContainerRequests:
    """The directory of this agent's requests in containers, and those that wait for their image."""

    def __init__(self) -> None:
        # It contains our pid, so that the check for leftovers can tell whether we are alive.
        self.run = "ask-%d" % os.getpid()
        self._directory = run_directory.make_directory(self.run)
        self.unpacks = ImageUnpacks(self.run, self._directory)
        self._waiting: dict[int, Start] = {}
        self._marks: list[str] = []

    def hold(self, message: frames.Message, start: Start) -> bool:
        """Whether the request waits for its image; `start` is called later, with why the image can't be used."""
        if not self.unpacks.hold(message):
            return False
        self._waiting[id(message)] = start
        return True

    def reap(self) -> None:
        """Starts the requests whose image has been unpacked."""
        for pid in self.unpacks.list_pids():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                for message, why in self.unpacks.reap(pid, os.waitstatus_to_exitcode(status)):
                    self._waiting.pop(id(message))(why)

    def record(self, message: frames.Message, mark: str) -> None:
        """Records a request that starts, so that nothing of it remains."""
        spec = container_command.ContainerSpec(message["container"])
        if not spec.is_apptainer:
            self._marks.append(mark)
            setup = [str(word) for word in message.get("setup") or ()]
            container_cleanup.record_runtime(self._directory, spec.runtime, setup, os.environ)

    def wrap(self, message: frames.Message, argv: list[str], env: dict[str, str]) -> None:
        """Turns argv and env into the command that runs them inside; in the child, since a dead mount may block it."""
        spec = container_command.ContainerSpec(message["container"])
        spec.image = self.unpacks.resolve(spec.image)
        cwd = message.get("cwd")
        if cwd is not None and os.path.isdir(cwd):
            os.chdir(cwd)
        else:
            # Not there: a finding of its own, which says more than a container that does not start.
            cwd = None
        given = {*(message.get("env") or {}), process_tree.RUN_ID}
        words, outer = container_command.wrap_command(
            spec, argv, dict(env), given, run=self.run, directory=self._directory, cwd=cwd
        )
        argv[:] = container_command.run_after_setup([str(word) for word in message.get("setup") or ()], words)
        env.clear()
        env.update(outer)

    def end(self, *, clean: bool) -> None:
        """Leaves nothing behind; unless `clean`, a runtime was killed and may have left its container."""
        self.unpacks.drop()
        if not clean:
            container_cleanup.remove_containers(self.run, self._directory)
        # Podman's first command of a login starts a process that keeps the user's namespaces.
        for mark in (self.run, *self._marks):
            process_tree.send_signal(process_tree.find_run_processes(mark), 9)
        run_directory.remove_directory(self._directory)
