"""How faithful and how fast the decoding methods are on the demo pair: the source of docs/reports/fidelity.md."""
