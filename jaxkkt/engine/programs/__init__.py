"""The compiled programs that draw, train and measure runs, and what they are told."""
