package sandbox

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A limitCall is the number of the system call that sets limits of any process of the same user in an architecture:
// prlimit64.
type limitCall struct{ architecture, number uint32 }

// limitCalls are those of each system's programs, including older programs that it can run.
var limitCalls = map[string][]limitCall{
	"amd64": {{unix.AUDIT_ARCH_X86_64, 302}, {unix.AUDIT_ARCH_X86_64, 1<<30 | 302}, {unix.AUDIT_ARCH_I386, 340}}, // the second is that of x32
	"arm64": {{unix.AUDIT_ARCH_AARCH64, 261}, {unix.AUDIT_ARCH_ARM, 369}},
}

// keepLimits prevents this thread, and programs that it starts, from changing the limits of other processes: with
// these a program could stop the mesh, by removing its processor time or files. Landlock does not cover them. A
// program can still change its own limits.
func keepLimits() error {
	// This is seccomp_data (seccomp(2)): number, architecture, instruction, six arguments. The first argument is a
	// process, of which the kernel ignores the upper half.
	const number, architecture, process = 0, 4, 16
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	unless := func(is uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: is, Jf: skip}
	}
	answer := func(what uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: what}
	}
	calls := limitCalls[runtime.GOARCH]
	if len(calls) == 0 {
		return errors.New("the number of the system call is not known here")
	}
	var program []unix.SockFilter
	for _, c := range calls {
		program = append(program,
			load(architecture), unless(c.architecture, 6),
			load(number), unless(c.number, 4),
			load(process), unless(0, 1), answer(unix.SECCOMP_RET_ALLOW), answer(unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)),
		)
	}
	program = append(program, answer(unix.SECCOMP_RET_ALLOW))
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]} //nolint:gosec // it has only a few instructions
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
	runtime.KeepAlive(program)
	if err != nil {
		return fmt.Errorf("keep limits of processes: %w", err)
	}
	return nil
}
