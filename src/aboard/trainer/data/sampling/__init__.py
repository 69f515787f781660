"""Packs documents into sequences, and decides the order and mix in which ranks train on them."""
