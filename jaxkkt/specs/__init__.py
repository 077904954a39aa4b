"""What a run is: data, network, initialization, training and measurements, as frozen classes."""
