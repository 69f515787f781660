"""What a rank sets before it imports torch."""

from aboard.trainer.__main__ import prefer_expandable_segments


def test_segments_are_expandable_unless_the_user_configures_the_allocator() -> None:
    """By either name of the variable: torch would replace the user's options as a whole."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        own = {name: "max_split_size_mb:512"}
        prefer_expandable_segments(own)
        assert own == {name: "max_split_size_mb:512"}
    plain: dict[str, str] = {}
    prefer_expandable_segments(plain)
    assert plain == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
