"""A stand-in for gpt-neox's prepare_data.py: it turns a text into the token file that the training reads."""

import argparse
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", nargs="?", default="enwik8", choices=["enwik8"])
    parser.add_argument("-d", "--data-dir", type=Path, default=Path("data"))
    args = parser.parse_args()
    folder = args.data_dir / args.dataset
    folder.mkdir(parents=True, exist_ok=True)
    # A byte is a token; gpt-neox's file has two bytes per token, and an index beside it.
    tokens = (args.data_dir / "letters.txt").read_bytes()
    (folder / f"{args.dataset}_text_document.bin").write_bytes(tokens)
    print(f"{len(tokens)} tokens in {folder / args.dataset}_text_document.bin")


if __name__ == "__main__":
    main()
