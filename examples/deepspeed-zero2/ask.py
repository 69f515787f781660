"""Shows letters to the model of letters.pt that it has not seen in training, and counts those that it reads."""

import torch
from letters import LETTERS, build_model, split_pictures


def main():
    model = build_model()
    model.load_state_dict(torch.load("letters.pt", weights_only=True))
    _, (pictures, places) = split_pictures()
    read = model(pictures).argmax(dim=1)
    for row in pictures[0].reshape(5, 5):
        print("".join("#" if pixel else "." for pixel in row))
    print(f"is read as {list(LETTERS)[read[0]]}")
    print(f"{(read == places).sum()} of {len(places)} right")


if __name__ == "__main__":
    main()
