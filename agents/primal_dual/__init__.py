"""The paper's learner: primal-dual gradient ascent through the exact transition."""
