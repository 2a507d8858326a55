package personal_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A tracer runs a program and stops it before each system call that creates, renames or removes a file below a
// directory. These system calls are the steps of the program. Other processes that the program starts are not stopped.
type tracer struct {
	// below is the directory in which changes to files count as steps.
	below string
	// killAt is the number of the step before which the program is killed. If it is 0, the program is not killed.
	killAt int

	steps []string
	pid   int
}

// errNoTracing means that the system does not permit tracing.
var errNoTracing = errors.New("tracing is not permitted")

// run runs a program until it exits or is killed. It returns the exit code, or -1 if it was killed.
func (tr *tracer) run(program string, args, env []string, out *os.File) (code int, err error) {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // a thread traces its own children. It ends with the goroutine.
		code, err = tr.trace(program, args, env, out)
		done <- nil
	}()
	<-done
	return code, err
}

func (tr *tracer) trace(program string, args, env []string, out *os.File) (code int, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	p, err := os.StartProcess(program, append([]string{program}, args...), &os.ProcAttr{
		Dir: tr.below, Env: env, Files: []*os.File{null, out, out}, Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if errors.Is(err, syscall.EPERM) {
		return 0, errNoTracing
	}
	if err != nil {
		return 0, err
	}
	tr.pid = p.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(tr.pid, &status, unix.WALL, nil); err != nil { // it stops at exec
		return 0, err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := errors.Join(unix.PtraceSetOptions(tr.pid, options), unix.PtraceSyscall(tr.pid, 0)); err != nil {
		return 0, err
	}
	for {
		// Wait only for this process group. The same thread may have started commands for other tests.
		thread, err := unix.Wait4(-tr.pid, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the program: %w", err)
		case thread == tr.pid && (status.Exited() || status.Signaled()):
			return status.ExitStatus(), nil
		case status.Stopped():
			tr.stopped(thread, status)
		}
	}
}

// stopped handles a thread that has stopped for the tracer. Errors are ignored, because a thread that was killed can't
// be continued anyway.
func (tr *tracer) stopped(thread int, status unix.WaitStatus) {
	signal := int(status.StopSignal())
	switch {
	case signal == int(unix.SIGTRAP|0x80):
		if step := tr.stepOf(thread); step != "" {
			tr.steps = append(tr.steps, step)
			if len(tr.steps) == tr.killAt {
				_ = unix.Kill(tr.pid, unix.SIGKILL)
			}
		}
		signal = 0
	case signal == int(unix.SIGTRAP), signal == int(unix.SIGSTOP): // a new thread
		signal = 0
	}
	_ = unix.PtraceSyscall(thread, signal)
}

// stepOf describes the system call that a thread is about to make, or returns "" if the call is not a step.
func (tr *tracer) stepOf(thread int) string {
	var regs unix.PtraceRegs
	if unix.PtraceGetRegs(thread, &regs) != nil || regs.Rax != ^uint64(unix.ENOSYS)+1 { // the call has ended
		return ""
	}
	name := map[uint64]string{
		unix.SYS_OPENAT: "create", unix.SYS_RENAMEAT: "rename", unix.SYS_RENAMEAT2: "exchange", unix.SYS_UNLINKAT: "remove", unix.SYS_LINKAT: "link",
	}[regs.Orig_rax]
	if name == "" || name == "create" && regs.Rdx&unix.O_EXCL == 0 {
		return ""
	}
	path := tr.pathOf(thread, int(int32(regs.Rdi)), uintptr(regs.Rsi))
	shown, below := strings.CutPrefix(path, tr.below+"/")
	if !below {
		return ""
	}
	return name + " " + shown
}

func (tr *tracer) pathOf(thread, dir int, at uintptr) string {
	raw := make([]byte, unix.PathMax)
	local := []unix.Iovec{{Base: &raw[0]}}
	local[0].SetLen(len(raw))
	n, _ := unix.ProcessVMReadv(thread, local, []unix.RemoteIovec{{Base: at, Len: len(raw)}}, 0) // the end may be unmapped
	if n == 0 {
		page := os.Getpagesize()
		rest := page - int(at)%page
		local[0].SetLen(rest)
		n, _ = unix.ProcessVMReadv(thread, local, []unix.RemoteIovec{{Base: at, Len: rest}}, 0)
	}
	path, _, _ := bytes.Cut(raw[:max(n, 0)], []byte{0})
	if filepath.IsAbs(string(path)) || dir == unix.AT_FDCWD {
		return string(path)
	}
	parent, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(thread), "fd", strconv.Itoa(dir)))
	return filepath.Join(parent, string(path))
}

// trace runs the program in a home directory under a tracer. If killAt is not 0, the program is killed before that
// step. trace returns the steps, the exit code, and the output.
func (h *home) trace(killAt int, args ...string) (steps []string, code int, out string) {
	h.t.Helper()
	file, err := os.CreateTemp(h.t.TempDir(), "out")
	if err != nil {
		h.t.Fatal(err)
	}
	defer file.Close()
	tr := &tracer{below: h.dir, killAt: killAt}
	code, err = tr.run(h.program, args, h.env, file)
	if errors.Is(err, errNoTracing) {
		h.t.Skip(err)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	raw, err := os.ReadFile(file.Name())
	if err != nil {
		h.t.Fatal(err)
	}
	return tr.steps, code, string(raw)
}
