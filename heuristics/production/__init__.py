"""What frameworks do today, each as a documented rule in the terms of its own program."""
