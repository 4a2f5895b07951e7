"""scripts/check_includes.py finds what it is there to find, and nothing else."""

import importlib.util
import pathlib
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_includes.py"
SPEC = importlib.util.spec_from_file_location("check_includes", SCRIPT)
check_includes = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_includes)


class CheckIncludesTest(unittest.TestCase):
    def found(self, path, *includes):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, path)
            file.parent.mkdir(parents=True)
            lines = ["#pragma once"] + [f"#include {header}" for header in includes]
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
            found, count = check_includes.check(pathlib.Path(folder))
            self.assertLessEqual(count, 1)
            return found

    def assert_violation(self, path, header, said):
        found = self.found(path, "<vector>", header)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{path}:3: "), found[0])
        self.assertIn(said, found[0])

    def test_a_room_may_include_rooms_above_it(self):
        for path, header in [
            ("engine/base/a.h", '"absl/status/status.h"'),
            ("engine/sched/a.h", '"engine/decode/method.h"'),
            ("engine/backend/torch/model/a.h", '"engine/pass/pass.h"'),
            ("engine/backend/torch/a.h", "<ATen/core/Tensor.h>"),
            ("engine/host/a.h", '"tandem/config/v1/deployment.pb.h"'),
            ("server/a.h", "<grpcpp/grpcpp.h>"),
            ("server/a.h", '"tandem/v1/generation.grpc.pb.h"'),
            ("client/a.h", '"engine/base/status.h"'),
            ("client/a.h", '"rpc/event_engine.h"'),
            ("server/grpc/a.h", '"rpc/event_engine.h"'),
            ("rpc/a.h", "<grpc/grpc.h>"),
            ("server/grpc/a.h", '"server/edge/peer.h"'),
            ("tests/engine/decode/a.h", '"engine/backend/fake/fake.h"'),
            ("tests/server/a.h", '"client/client.h"'),
        ]:
            self.assertEqual(self.found(path, header), [], (path, header))

    def test_a_room_below_is_found(self):
        self.assert_violation("engine/base/a.h", '"engine/async/task.h"', "engine/async")
        self.assert_violation("engine/cache/a.h", '"engine/sched/loop.h"', "engine/sched")
        self.assert_violation("engine/host/a.h", '"server/server.h"', "server")
        self.assert_violation(
            "engine/backend/torch/a.h", '"engine/backend/fake/fake.h"', "engine/backend/fake"
        )

    def test_methods_have_no_planted_bugs(self):
        header = '"engine/base/mutation.h"'
        self.assert_violation("engine/decode/a.h", header, "mutations")
        self.assert_violation("engine/pass/a.h", header, "mutations")
        self.assertEqual(self.found("engine/sched/a.h", header), [])
        self.assertEqual(self.found("tests/engine/decode/a.h", header), [])

    def test_libraries_stay_in_their_rooms(self):
        self.assert_violation("engine/pass/a.h", "<ATen/core/Tensor.h>", "LibTorch")
        self.assert_violation(
            "engine/backend/torch/weights/a.h", "<ATen/core/Tensor.h>", "LibTorch"
        )
        self.assert_violation("engine/host/a.h", "<c10/core/Device.h>", "LibTorch")
        self.assert_violation("engine/sched/a.h", "<grpcpp/grpcpp.h>", "gRPC")
        self.assert_violation("engine/host/a.h", "<grpcpp/grpcpp.h>", "gRPC")
        self.assert_violation("engine/base/a.h", "<google/protobuf/message.h>", "protobuf")
        self.assert_violation("engine/text/a.h", '"tandem/v1/generation.pb.h"', "proto")
        self.assert_violation("tests/engine/cache/a.h", "<ATen/core/Tensor.h>", "LibTorch")

    def test_the_client_sees_proto_and_base_only(self):
        self.assert_violation("client/a.h", '"engine/async/task.h"', "engine/async")
        self.assert_violation("client/a.h", '"engine/host/engine.h"', "engine/host")
        self.assert_violation("client/a.h", '"server/server.h"', "server")
        self.assert_violation("rpc/a.h", '"client/client.h"', "client")
        self.assert_violation("server/edge/a.h", '"server/grpc/raw_service.h"', "server")

    def test_form(self):
        self.assert_violation("engine/base/a.h", '"../base/b.h"', "repository root")
        self.assert_violation("engine/base/a.h", '"b.h"', "repository root")
        self.assert_violation("engine/backend/torch/a.h", "<torch/torch.h>", "26 s")
        self.assertIn("no room", self.found("engine/other/a.h")[0])


if __name__ == "__main__":
    unittest.main()
