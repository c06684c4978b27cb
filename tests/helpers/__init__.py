"""What several test files share: mock models, slow and obvious references, statistical checks, planted faults."""
