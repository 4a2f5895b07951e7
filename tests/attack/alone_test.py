"""The baseline of the attack report: a bystander's figures on a server without attacks."""

import os
import time

import pytest


@pytest.mark.skipif("TANDEM_ATTACK_RECORD" not in os.environ, reason="asserts nothing")
def test_a_bystander_alone(attack):
    with attack().bystander():
        time.sleep(2)
