# SPDX-License-Identifier: Apache-2.0
"""What deploy/readers/audit.py says of machine code: kernels written by hand, in the words of nvdisasm."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "readers"))
import audit  # noqa: E402  pylint: disable=wrong-import-position

PARAMS = audit.PARAMS["sm_90"]
#: y[i] = x[i]: x is word 0, y word 8, i is multiplied by a stride at byte 20
COPY = """
S2R R0, SR_TID.X
IMAD R0, R0, c[0x0][0x224], RZ
IMAD.WIDE.U32 R2, R0, 0x4, RZ
IADD3 R4, P0, R2, c[0x0][0x210], RZ
IADD3.X R5, RZ, c[0x0][0x214], RZ, P0, !PT
LDG.E R6, desc[UR4][R4.64]
"""
STORE = """
IADD3 R8, P0, R2, c[0x0][0x218], RZ
IADD3.X R9, RZ, c[0x0][0x21c], RZ, P0, !PT
STG.E desc[UR4][R8.64], R6
EXIT
"""


def writes(text):
    listing = [line if line.endswith(":") else f"        /*0000*/                   {line} ;" for line in text.splitlines() if line]
    (name, lines), = audit.functions("\n".join([".text.kernel:", *listing, "//-----"]))
    assert name == "kernel"
    return audit.Function(lines, PARAMS).writes()


class Audit(unittest.TestCase):
    def test_the_output_is_written_and_the_input_is_not(self):
        self.assertEqual(writes(COPY + STORE), [8])

    def test_a_pointer_from_memory_is_refused(self):
        with self.assertRaisesRegex(audit.Unknown, "elsewhere"):
            writes(COPY.replace("LDG.E R6,", "LDG.E.64 R8,") + "STG.E desc[UR4][R8.64], R6\nEXIT")

    def test_an_atomic_counts_as_a_store(self):
        self.assertEqual(writes(COPY + "ATOMG.E.ADD.STRONG.GPU PT, R7, desc[UR4][R4.64], R6" + STORE), [0, 8])

    def test_either_of_two_ways(self):
        text = COPY + """
ISETP.NE.AND P1, PT, R0, RZ, PT
@P1 BRA `(.L_x_1)
IADD3 R8, P0, R2, c[0x0][0x218], RZ
IADD3.X R9, RZ, c[0x0][0x21c], RZ, P0, !PT
BRA `(.L_x_2)
.L_x_1:
IADD3 R8, P0, R2, c[0x0][0x228], RZ
IADD3.X R9, RZ, c[0x0][0x22c], RZ, P0, !PT
.L_x_2:
STG.E desc[UR4][R8.64], R6
EXIT
"""
        self.assertEqual(writes(text), [8, 24])

    def test_what_a_loop_carries(self):
        text = """
MOV R8, c[0x0][0x210]
MOV R9, c[0x0][0x214]
MOV R2, c[0x0][0x218]
MOV R3, c[0x0][0x21c]
.L_x_1:
STG.E desc[UR4][R8.64], RZ
MOV R8, R2
MOV R9, R3
ISETP.NE.AND P0, PT, R1, RZ, PT
@P0 BRA `(.L_x_1)
EXIT
"""
        self.assertEqual(writes(text), [0, 8])

    def test_under_the_same_condition(self):
        """What R9 had before counts only where the condition does not hold, and there is no store."""
        text = COPY + """
LDG.E R9, desc[UR4][R4.64]
@!P1 IADD3 R8, P0, R2, c[0x0][0x218], RZ
@!P1 IADD3.X R9, RZ, c[0x0][0x21c], RZ, P0, !PT
@!P1 STG.E desc[UR4][R8.64], R6
EXIT
"""
        self.assertEqual(writes(text), [8])
        with self.assertRaisesRegex(audit.Unknown, "elsewhere"):
            writes(text.replace("@!P1 STG", "ISETP.NE.AND P1, PT, R0, RZ, PT\n@!P1 STG"))

    def test_a_condition_that_comes_before_the_result_changes(self):
        """SHFL sets P1: behind it the store is on other ways than what was computed before."""
        text = COPY + """
LDG.E R9, desc[UR4][R4.64]
@!P1 IADD3 R8, P0, R2, c[0x0][0x218], RZ
@!P1 IADD3.X R9, RZ, c[0x0][0x21c], RZ, P0, !PT
SHFL.IDX P1, R10, R0, RZ, 0x1f
@!P1 STG.E desc[UR4][R8.64], R6
EXIT
"""
        with self.assertRaisesRegex(audit.Unknown, "elsewhere"):
            writes(text)

    def test_a_product_with_carries(self):
        text = COPY + """
MOV R12, c[0x0][0x218]
MOV R13, c[0x0][0x21c]
IMAD.WIDE.U32 R8, P0, R0, 0x4, R12
STG.E desc[UR4][R8.64], R6
IMAD.WIDE.U32.X R8, R0, 0x4, R12, P0
STG.E desc[UR4][R8.64], R6
EXIT
"""
        self.assertEqual(writes(text), [8])

    def test_threads_meet_behind_a_barrier(self):
        text = COPY + """
MOV R8, c[0x0][0x218]
MOV R9, c[0x0][0x21c]
BSSY B0, `(.L_x_2)
@P0 BRA `(.L_x_1)
BSYNC B0
.L_x_1:
MOV R8, c[0x0][0x228]
MOV R9, c[0x0][0x22c]
BSYNC B0
EXIT
.L_x_2:
STG.E desc[UR4][R8.64], R6
EXIT
"""
        self.assertEqual(writes(text), [8, 24])

    def test_the_stack_keeps_pointers(self):
        text = COPY + """
STL.64 [R1], R2
MOV R10, c[0x0][0x218]
MOV R11, c[0x0][0x21c]
STL.64 [R1+0x8], R10
LDL.64 R8, [R1+0x8]
STG.E desc[UR4][R8.64], R6
EXIT
"""
        self.assertEqual(writes(text), [8])

    def test_what_is_not_understood_is_refused(self):
        for line in ("CALL.REL.NOINC `(somewhere)", "UTMASTG.2D [UR8], [UR4]", "NEWTHING R4, R5", "BRX R4 -0x10", "ST.E [R8], R6",
                     "LDC.64 R8, c[0x0][R4+0x218]\nSTG.E desc[UR4][R8.64], R6"):
            with self.subTest(line=line), self.assertRaises(audit.Unknown):
                writes(COPY + line + STORE)

    def test_a_learned_table_is_completed(self):
        seen = ["function f # 4 launches", "  reads 0 # 4"]
        self.assertEqual(audit.merge(seen, [8]), [seen[0], "  writes 8"])
        self.assertEqual(audit.merge(seen, [0, 8]), [seen[0], "  writes 8"])
        self.assertEqual(audit.merge(seen, [0]), seen)
        self.assertEqual(audit.merge(["opaque f # why"], [8]), ["opaque f # why"])


if __name__ == "__main__":
    unittest.main()
