package sandbox

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A limitCall is the number of the system call prlimit64 on one architecture. This system call can set the limits of
// any process of the same user.
type limitCall struct{ architecture, number uint32 }

// limitCalls contains, for each GOARCH, the system calls of all architectures whose programs the system can run.
var limitCalls = map[string][]limitCall{
	"amd64": {{unix.AUDIT_ARCH_X86_64, 302}, {unix.AUDIT_ARCH_X86_64, 1<<30 | 302}, {unix.AUDIT_ARCH_I386, 340}}, // with x32
	"arm64": {{unix.AUDIT_ARCH_AARCH64, 261}, {unix.AUDIT_ARCH_ARM, 369}},
}

// protectLimits prevents this thread, and the programs that it starts, from changing the limits of other processes.
// Otherwise a program could stop the mesh by reducing the mesh's processor time or its maximum number of files.
// Landlock does not prevent this. A program can still change its own limits.
func protectLimits() error {
	// These are offsets in struct seccomp_data (seccomp(2)), which contains the number of the system call, the
	// architecture, the instruction pointer and six arguments. The first argument of prlimit64 is a process id. The
	// kernel ignores the upper half of this argument.
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
		return errors.New("the number of the system call is unknown for this architecture")
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
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]} //nolint:gosec // the program has only a few instructions
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
	runtime.KeepAlive(program)
	if err != nil {
		return fmt.Errorf("protect limits of processes: %w", err)
	}
	return nil
}
