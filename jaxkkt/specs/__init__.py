"""The parts of a run as frozen classes: data, network, initialization, optimizer; identity."""
