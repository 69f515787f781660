"""The sync of trees to one node: compares, deletes, sends small files as a stream, and sets modes and times."""

import stat
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field

from aboard.commands.sync.file_packs import FilePacks, PackKey
from aboard.commands.sync.node_transfer import DirectoryState, NodeTransfer
from aboard.commands.sync.trees.source_tree import SourceTree
from aboard.commands.sync.trees.tree_difference import (
    TreeDifference,
    compare_tree,
    find_extra,
    list_final_folders,
    list_locked_folders,
)
from aboard.core.cluster.file_sync import OnProgress, UploadProgress
from aboard.core.cluster.file_transfer_errors import (
    build_foreign_files_error,
    build_no_room_error,
    build_permission_error,
)
from aboard.core.cluster.node import Node
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.tree_sender import MOST_EXTRA, TreeEntry, TreeSender
from aboard.transport.node_dialer import NodeDialer

_BLOCK = 4096
_OTHERS = 0o055


@dataclass(kw_only=True)
class _TreeState(DirectoryState):
    tree: SourceTree
    packs: FilePacks
    difference: TreeDifference = field(default_factory=TreeDifference)
    pending: "deque[PackKey]" = field(default_factory=deque)


class NodeTrees(NodeTransfer[TreeSender]):
    """All trees of one node, from the comparison to the last directory's time."""

    def __init__(
        self, node: Node, packs: Mapping[int, FilePacks], trees: Sequence[SourceTree], dialer: NodeDialer,
        on_progress: OnProgress, *, delete: bool,
    ) -> None:  # fmt: skip
        self._trees = [_TreeState(to=tree.to, tree=tree, packs=packs[place]) for place, tree in enumerate(trees)]
        super().__init__(node, self._trees, dialer, TreeSender, on_progress)
        self.deleted = self.total = 0
        self._delete = delete

    @property
    def differences(self) -> list[TreeDifference]:
        return [state.difference for state in self._trees]

    def lacks(self, place: int) -> bool:
        difference = self._trees[place].difference
        return bool(difference.small or difference.large)

    async def survey(self) -> None:
        """Finds what the node lacks and has too many of; raises if its disk can't take it."""
        for state in self._trees:
            state.difference = await self._sender.run(lambda sender: self._compare(state, sender))  # noqa: B023 - awaited here
        if self._delete:
            await self._sender.run(self._refuse_foreign_files)
        self.total = sum(state.difference.count_bytes(state.tree) for state in self._trees)
        self._check_space()

    async def send_small(self) -> None:
        """Makes the tree as it should be, but for large files, modes and times."""
        for place, state in enumerate(self._trees):
            if await self.wait_for_first(place):
                state.difference = await self._sender.run(lambda sender: self._compare(state, sender))  # noqa: B023 - awaited here
            state.pending = state.packs.select(state.difference.small)
            if not state.difference.is_empty:
                await self._sender.run(lambda sender: self._change(state, sender))  # noqa: B023 - awaited here
            state.filled.set()

    async def finish(self) -> None:
        """Sets modes and times: directories last, since each new file in them changes theirs."""
        for state in self._trees:
            if not state.difference.is_empty:
                await self._sender.run(lambda sender: self._stamp(state, sender))  # noqa: B023 - awaited here
        self._on_progress(UploadProgress(node=self.node.name, phase="done", done=self.total, total=self.total))

    async def _compare(self, state: _TreeState, sender: TreeSender) -> TreeDifference:
        tree = state.tree
        state.contents = await sender.list_folder(tree.to, [])
        deletes = self._delete and tree.is_whole
        found = await sender.list_entries(
            tree.to,
            list(tree.folders) if tree.is_whole else [""],
            known=lambda path: path in tree.files or path in tree.folders or path in tree.links,
            most_extra=MOST_EXTRA if deletes else 0,
        )
        difference = compare_tree(tree, found)
        if difference.uncertain:
            there = await sender.hash_files(tree.to, difference.uncertain)
            here = await state.packs.hash_files(difference.uncertain)
            for path in difference.uncertain:
                (difference.stamped_files if there[path] == here[path] else difference.small).append(path)
        if deletes:
            difference.removed += await _list_extra(tree, found, sender)
        difference.locked = list_locked_folders(found, difference)
        return difference

    async def _change(self, state: _TreeState, sender: TreeSender) -> None:
        tree, difference = state.tree, state.difference
        if difference.locked:
            await sender.make(tree.to, [(path, 0o700) for path in difference.locked], [])
        self.deleted += await sender.delete(tree.to, difference.removed)
        root = tree.folders.get("")
        if root is not None and root.mode & _OTHERS != _OTHERS and "" in list_final_folders(tree, difference):
            # A new root gets the umask's mode: others must not look in while files arrive.
            await sender.make(tree.to, [], [])
            await sender.stamp(tree.to, [("", root.mode | stat.S_IRWXU, root.mtime_ns)])
        await sender.make(
            tree.to,
            [(path, tree.folders[path].mode) for path in difference.folders],
            [(path, tree.links[path]) for path in difference.links],
        )
        await sender.send_packs(tree.to, state.pending, state.packs.load, self._count_sent)

    async def _stamp(self, state: _TreeState, sender: TreeSender) -> None:
        tree, difference = state.tree, state.difference
        files = [(path, tree.files[path]) for path in (*difference.stamped_files, *difference.large)]
        folders = [(path, tree.folders[path]) for path in list_final_folders(tree, difference)]
        await sender.stamp(tree.to, [(path, status.mode, status.mtime_ns) for path, status in (*files, *folders)])
        await sender.flush(tree.to, equal=self._delete and tree.is_whole)

    async def _refuse_foreign_files(self, sender: TreeSender) -> None:
        """Raises if --delete would delete in a directory that neither the user typed nor a sync made."""
        for state in self._trees:
            tree = state.tree
            # A link in the place of a large file is removed with and without --delete.
            extra = [path for path in state.difference.removed if path not in tree.files]
            if extra and not tree.is_named and not await sender.was_synced(tree.to):
                kind = "data" if tree.is_data else "code"
                raise build_foreign_files_error(self.node.name, tree.to, str(tree.root), extra, kind=kind)

    def _check_space(self) -> None:
        for state in self._trees:
            if state.contents is None or state.difference.is_empty:
                continue
            if not state.contents.writable:
                raise build_permission_error(self.node.name, state.tree.to, state.contents.nearest)
            difference = state.difference
            needed = sum(
                -(-state.tree.files[path].size // _BLOCK) * _BLOCK for path in (*difference.small, *difference.large)
            )
            if needed > state.contents.free:
                raise build_no_room_error(
                    self.node.name, state.contents.nearest, free=state.contents.free, needed=needed
                )

    def _count_sent(self, count: int) -> None:
        self._sender.transferred += count
        self._report("sending")

    def _count_done(self) -> tuple[int, int]:
        return self.sent, self.total


async def _list_extra(tree: SourceTree, found: Mapping[str, TreeEntry], sender: TreeSender) -> list[str]:
    """What the node has and the head has not, contents before directories; looks into extra directories too."""
    extra, folders = find_extra(tree, found)
    while folders:
        left = MOST_EXTRA - len(extra)
        inside = await sender.list_entries(tree.to, folders, known=lambda _path: False, most_extra=max(1, left))
        more, folders = find_extra(tree, inside)
        extra += more
    return extra[::-1]
