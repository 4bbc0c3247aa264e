/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One exported entry per call of the real library: a jump through shim_table, nothing else. NAMES is
 * the list, given when it is assembled: once per library.
 *
 * Programs patch entries in place (funchook in comfy-aimdo, UCX, Frida): they write a jump of 5 to 14
 * bytes over the first instructions, and run those elsewhere to call the original. UCX knows few
 * instructions, and others cannot move one that is relative to its address. So each entry has its own
 * 32 bytes, and begins with 15 bytes of what they all can move: the number of the call, for
 * lazy_common, in a register that no call takes. Twice more than that needs.
 *
 * A slot first leads to lazy_common, which resolves all slots, keeps the arguments, and jumps again.
 * So nothing happens before the first call, and no call pays for the question whether it is the
 * first.
 */
#ifndef __x86_64__
#error "the shim's entries are written for x86-64 only"
#endif

	.text
#define NAME(symbol, number) \
	.globl symbol; \
	.type symbol, @function; \
	.balign 32, 0xcc; \
symbol: \
.Lentry_##number: \
	mov $number, %eax; \
	mov $number, %eax; \
	mov $number, %eax; \
	jmp *shim_table+8*number(%rip); \
	.size symbol, . - symbol;
#include NAMES
#undef NAME

/*
 * On entry: (%rsp) the caller, %eax the number. Seven pushes align the stack to 16 bytes. No call
 * takes more than 8 floating point arguments, none takes a vector wider than 16 bytes.
 */
	.balign 16, 0xcc
	.type lazy_common, @function
lazy_common:
	.cfi_startproc
	push %rax
	push %rdi
	push %rsi
	push %rdx
	push %rcx
	push %r8
	push %r9
	.cfi_adjust_cfa_offset 56
	sub $128, %rsp
	.cfi_adjust_cfa_offset 128
	movups %xmm0, (%rsp)
	movups %xmm1, 16(%rsp)
	movups %xmm2, 32(%rsp)
	movups %xmm3, 48(%rsp)
	movups %xmm4, 64(%rsp)
	movups %xmm5, 80(%rsp)
	movups %xmm6, 96(%rsp)
	movups %xmm7, 112(%rsp)
	call shim_resolve
	movups (%rsp), %xmm0
	movups 16(%rsp), %xmm1
	movups 32(%rsp), %xmm2
	movups 48(%rsp), %xmm3
	movups 64(%rsp), %xmm4
	movups 80(%rsp), %xmm5
	movups 96(%rsp), %xmm6
	movups 112(%rsp), %xmm7
	add $128, %rsp
	.cfi_adjust_cfa_offset -128
	pop %r9
	pop %r8
	pop %rcx
	pop %rdx
	pop %rsi
	pop %rdi
	pop %rax
	.cfi_adjust_cfa_offset -56
	lea shim_table(%rip), %r11
	jmp *(%r11,%rax,8)
	.cfi_endproc
	.size lazy_common, . - lazy_common

	.section .data.rel, "aw", @progbits
	.hidden shim_table
	.globl shim_table
	.type shim_table, @object
	.balign 64
shim_table:
#define NAME(symbol, number) .quad lazy_common;
#include NAMES
#undef NAME
	.size shim_table, . - shim_table

/* Our own entries, even where another library's symbol comes first. */
	.section .data.rel.ro, "aw", @progbits
	.hidden shim_entries
	.globl shim_entries
	.type shim_entries, @object
	.balign 8
shim_entries:
#define NAME(symbol, number) .quad .Lentry_##number;
#include NAMES
#undef NAME
	.size shim_entries, . - shim_entries

	.section .note.GNU-stack, "", @progbits
