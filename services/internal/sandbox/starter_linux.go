package sandbox

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
)

const (
	// starterFD is the file descriptor of the socket in the starter's process.
	starterFD = 3
	// maxStart is the maximum size in bytes of a request to a starter, and of the response. maxFiles is the maximum
	// number of files in a request.
	maxStart = 4 << 10
	maxFiles = 16
	// startTimeout limits how long a starter takes to start one launcher. Meanwhile, all other starts wait.
	startTimeout = 10 * time.Second
)

// starter starts launchers in namespaces, from a small separate process. It uses a separate process because Go can't
// share its memory with a new process in a new user namespace (no CLONE_VM). Therefore the kernel copies the page
// tables of all memory, and every page that is written afterwards causes a fault. In a gateway with hundreds of MiB of
// memory, this stopped all goroutines for up to 0.4 s (docs/decisions/0078-stdio-processes.md). The zero value starts
// the separate process when it is first needed. starter is safe for concurrent use.
type starter struct {
	mu sync.Mutex
	// socket is connected to the separate process. It is nil if there is no such process.
	socket *os.File
}

// startRequest asks a starter to start a launcher. The launcher's files are sent with the request.
type startRequest struct {
	// Setsid and Pdeathsig have the same meaning as in [syscall.SysProcAttr].
	Setsid    bool
	Pdeathsig syscall.Signal
	AsRoot    bool
	// Try makes the starter wait until the launcher exits. If Try is false, the launcher becomes a child of the process
	// that sends the request.
	Try bool
}

type startAnswer struct {
	// Pid is the process id of the launcher. If no launcher was started, Error contains the reason.
	Pid   int
	Error string
}

// start starts a launcher with the given files. It does not repeat a request that may have reached the starter.
// Otherwise two launchers could read from the same pipe, and the order could go to the launcher that no caller waits
// for.
func (s *starter) start(argv []string, r startRequest, files []*os.File) (*os.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.socket != nil
	err := s.send(argv, r, files)
	if err != nil && had { // the starter has ended, so the next one gets the request
		s.drop()
		err = s.send(argv, r, files)
	}
	var answer startAnswer
	if err == nil {
		answer, err = s.receive()
	}
	if err != nil {
		s.drop()
		return nil, fmt.Errorf("ask the process that starts servers: %w", err)
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return os.FindProcess(answer.Pid)
}

// drop closes the socket, which makes the separate process exit. The caller must hold mu.
func (s *starter) drop() {
	if s.socket != nil {
		_ = s.socket.Close()
		s.socket = nil
	}
}

// send sends a request to the separate process. If socket is nil, send starts the process. The caller must hold mu.
func (s *starter) send(argv []string, r startRequest, files []*os.File) (err error) {
	if s.socket == nil {
		if s.socket, err = startStarter(argv); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	fds := make([]int, len(files))
	for i, file := range files {
		fds[i] = int(file.Fd())
	}
	fd := int(s.socket.Fd())
	defer runtime.KeepAlive(files)
	return uninterrupted(func() error { return unix.Sendmsg(fd, raw, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL) })
}

// receive waits for the response to a request. The caller must hold mu.
func (s *starter) receive() (answer startAnswer, err error) {
	buf, n := make([]byte, maxStart), 0
	fd := int(s.socket.Fd())
	err = uninterrupted(func() (err error) { n, _, err = unix.Recvfrom(fd, buf, 0); return err })
	switch {
	case errors.Is(err, unix.EAGAIN):
		return answer, fmt.Errorf("it gave no answer within %s", startTimeout)
	case err != nil:
		return answer, err
	case n == 0:
		return answer, errors.New("it has ended")
	}
	return answer, json.Unmarshal(buf[:n], &answer)
}

// startStarter starts a starter and returns the socket that is connected to it. The thread that starts the starter is
// the parent of the launchers. If this thread ended, the launchers would receive the signal Pdeathsig. Therefore the
// thread never ends.
func startStarter(argv []string) (*os.File, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	limit := unix.NsecToTimeval(startTimeout.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(ends[0], unix.SOL_SOCKET, option, &limit); err != nil {
			return nil, errors.Join(err, unix.Close(ends[0]), unix.Close(ends[1]))
		}
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "starter"), os.NewFile(uintptr(ends[1]), "starter")
	defer theirs.Close() //nolint:errcheck // the starter has a copy
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	defer null.Close() //nolint:errcheck // nothing is written to it
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		process, err := os.StartProcess(argv[0], []string{argv[0], starterArg}, &os.ProcAttr{
			Dir: "/", Env: []string{}, Files: []*os.File{null, null, null, theirs},
			Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
		})
		started <- err
		if err != nil {
			return
		}
		_, _ = process.Wait()
		select {} // children of an earlier starter may still run
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return ours, nil
}

// serveStarts is the main function of the starter's process. It processes requests until the process that sends them
// has exited.
func serveStarts() int {
	runtime.LockOSThread() // Pdeathsig refers to the thread that starts a process
	if unix.CloseRange(starterFD+1, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) != nil {
		return exitLauncher
	}
	unix.CloseOnExec(starterFD)
	buf, oob := make([]byte, maxStart), make([]byte, unix.CmsgSpace(maxFiles*4))
	for {
		var n, oobn int
		err := uninterrupted(func() (err error) {
			n, oobn, _, _, err = unix.Recvmsg(starterFD, buf, oob, unix.MSG_CMSG_CLOEXEC)
			return err
		})
		if err != nil || n == 0 {
			return 0
		}
		answer := startLauncher(buf[:n], oob[:oobn])
		raw, err := json.Marshal(answer)
		if err == nil {
			err = uninterrupted(func() error { return unix.Sendmsg(starterFD, raw, nil, nil, unix.MSG_NOSIGNAL) })
		}
		if err != nil {
			return exitLauncher
		}
	}
}

func startLauncher(raw, oob []byte) (answer startAnswer) {
	files, err := filesOf(oob)
	defer func() {
		for _, file := range files {
			_ = file.Close()
		}
	}()
	var r startRequest
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	sys := &syscall.SysProcAttr{Setsid: r.Setsid, Pdeathsig: r.Pdeathsig}
	if err == nil {
		err = ownNamespaces(sys, r.AsRoot)
	}
	if !r.Try {
		sys.Cloneflags |= unix.CLONE_PARENT
	}
	var process *os.Process
	if err == nil {
		argv := launcherArgs()
		process, err = os.StartProcess(argv[0], argv, &os.ProcAttr{Dir: "/", Env: []string{}, Files: files, Sys: sys})
	}
	if err != nil {
		return startAnswer{Error: err.Error()}
	}
	answer.Pid = process.Pid
	if r.Try {
		go func() { _, _ = process.Wait() }()
	} else {
		_ = process.Release() // the requesting process waits for it
	}
	return answer
}

// filesOf returns the files that were sent with a request.
func filesOf(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "file"))
		}
	}
	return slices.Clip(files), nil
}

// uninterrupted calls a function again as long as a signal interrupts the function's system call (EINTR).
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
