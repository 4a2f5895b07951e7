"""scripts/check_includes.py finds each kind of violation, and nothing else."""

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

    def test_a_module_may_include_its_dependencies(self):
        for path, header in [
            ("engine/base/a.h", '"absl/status/status.h"'),
            ("engine/sched/a.h", '"engine/decode/method.h"'),
            ("engine/backend/torch/model/a.h", '"engine/pass/pass.h"'),
            ("engine/backend/torch/a.h", "<ATen/core/Tensor.h>"),
            ("engine/host/a.h", '"tandem/config/v1/deployment.pb.h"'),
            ("server/a.h", "<grpcpp/grpcpp.h>"),
            ("server/a.h", '"tandem/v1/generation.grpc.pb.h"'),
            ("client/a.h", '"engine/base/status.h"'),
            ("server/grpc/a.h", '"server/edge/peer.h"'),
            ("tests/engine/decode/a.h", '"engine/backend/fake/fake.h"'),
            ("tests/server/a.h", '"client/client.h"'),
        ]:
            self.assertEqual(self.found(path, header), [], (path, header))

    def test_other_modules_are_found(self):
        self.assert_violation("engine/base/a.h", '"engine/async/task.h"', "engine/async")
        self.assert_violation("engine/cache/a.h", '"engine/sched/loop.h"', "engine/sched")
        self.assert_violation("engine/host/a.h", '"server/server.h"', "server")
        self.assert_violation(
            "engine/backend/torch/a.h", '"engine/backend/fake/fake.h"', "engine/backend/fake"
        )

    def test_types_are_reached(self):
        files = {
            "engine/base/kind.h": "enum class Kind {\n  kOne\n};\nclass Other;\n",
            "engine/base/user.h": '#include "engine/base/kind.h"\nstruct User {\n  Kind kind;\n};\n',
            "engine/text/a.cpp": "// A User.\nUser user{v1::Kind()};\n",
            "engine/text/b.cpp": '#include "engine/base/user.h"\nKind kind = User().kind;\n',
            "engine/text/c.cpp": "struct User;\nOther* other;\nUser* user;\n",
        }
        self.assertEqual(
            check_includes.unreached(files), ["engine/text/a.cpp:1: User needs engine/base/user.h"]
        )

    def test_methods_have_no_mutations(self):
        header = '"engine/base/mutation.h"'
        self.assert_violation("engine/decode/a.h", header, "mutations")
        self.assert_violation("engine/pass/a.h", header, "mutations")
        self.assertEqual(self.found("engine/sched/a.h", header), [])
        self.assertEqual(self.found("tests/engine/decode/a.h", header), [])

    def test_libraries_are_limited_to_their_modules(self):
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

    def test_the_client_includes_only_proto_and_base(self):
        self.assert_violation("client/a.h", '"engine/async/task.h"', "engine/async")
        self.assert_violation("client/a.h", '"engine/host/engine.h"', "engine/host")
        self.assert_violation("client/a.h", '"server/server.h"', "server")
        self.assert_violation("server/edge/a.h", '"server/grpc/raw_service.h"', "server")

    def test_form(self):
        self.assert_violation("engine/base/a.h", '"../base/b.h"', "repository root")
        self.assert_violation("engine/base/a.h", '"b.h"', "repository root")
        self.assert_violation("engine/backend/torch/a.h", "<torch/torch.h>", "26 s")
        self.assertIn("not in a module", self.found("engine/other/a.h")[0])

    def python_found(self, path, text):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, path)
            file.parent.mkdir(parents=True)
            file.write_text(text, encoding="utf-8")
            return check_includes.check(pathlib.Path(folder))[0]

    def test_python_packages_depend_in_one_direction(self):
        for path, text in [
            ("tuning/a.py", "import torch\nfrom bench.peers import x\n"),
            ("tuning/a/b.py", "def f():\n    import bench.peers\n"),
            ("measure/a.py", "import os\nfrom tuning import x\n"),
            ("bench/peers/a.py", "import os\nimport tests.attack\n"),
        ]:
            found = self.python_found(path, text)
            self.assertEqual(len(found), 1, found)
            self.assertIn(f"{path}:2: {path.split('/')[0]} may not import", found[0])
        self.assertEqual(self.python_found("bench/a.py", "from tuning import x\n"), [])
        self.assertEqual(self.python_found("tuning/a.py", "from measure import x\n"), [])


if __name__ == "__main__":
    unittest.main()
