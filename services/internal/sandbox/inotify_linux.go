package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// These are file descriptors that a launcher in namespaces has in addition to orderFD.
const (
	// noticesFD is the inotify instance to which the launcher adds watches.
	noticesFD = orderFD + 1
	// wakeFD is the reading end of a pipe. When the pipe contains a byte, the launcher must check its paths again.
	wakeFD = orderFD + 2
)

// maxInotify is the maximum number of inotify instances that a program in namespaces may create.
const maxInotify = 32

// inotifyHub contains one inotify instance for all programs that this process starts. It is shared because the number
// of instances of a user is limited (fs.inotify.max_user_instances). Launchers add watches to the instance, and a pipe
// wakes each launcher. The zero value creates the instance when it is first needed. inotifyHub is safe for concurrent
// use.
type inotifyHub struct {
	mu       sync.Mutex
	instance *os.File
	// wakes contains the writing ends of the pipes of launchers that might still be running.
	wakes map[int]struct{}
}

// subscribe returns the instance and the reading end of a pipe that wakes a launcher.
func (n *inotifyHub) subscribe() (instance, wake *os.File, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.begin(); err != nil {
		return nil, nil, err
	}
	n.forgetEnded()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("watch hidden paths: %w", err)
	}
	if err := unix.SetNonblock(ends[1], true); err != nil {
		_, _ = unix.Close(ends[0]), unix.Close(ends[1])
		return nil, nil, fmt.Errorf("watch hidden paths: %w", err)
	}
	n.wakes[ends[1]] = struct{}{}
	return n.instance, os.NewFile(uintptr(ends[0]), "wake"), nil
}

// begin creates the instance if there is none. The caller must hold mu.
func (n *inotifyHub) begin() error {
	if n.instance != nil {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("watch hidden paths: %w", withInotifyLimit(err))
	}
	n.instance, n.wakes = os.NewFile(uintptr(fd), "inotify"), make(map[int]struct{})
	go n.run(fd)
	return nil
}

// run wakes all launchers whenever an event occurs. It returns only if reading events fails.
func (n *inotifyHub) run(fd int) {
	events := make([]byte, 64<<10)
	for {
		if _, err := unix.Read(fd, events); err != nil && !errors.Is(err, unix.EINTR) {
			n.stop() // launchers exit when their pipe is closed
			return
		}
		n.mu.Lock()
		for wake := range n.wakes {
			_, err := unix.Write(wake, []byte{0}) // if the pipe is full, the launcher has not read it yet
			if errors.Is(err, unix.EPIPE) {
				n.forget(wake)
			}
		}
		n.mu.Unlock()
	}
}

func (n *inotifyHub) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for wake := range n.wakes {
		n.forget(wake)
	}
	_ = n.instance.Close()
	n.instance = nil
}

// forgetEnded closes the pipes of launchers that have exited. The caller must hold mu.
func (n *inotifyHub) forgetEnded() {
	for wake := range n.wakes {
		poll := []unix.PollFd{{Fd: int32(wake)}}
		if _, err := unix.Poll(poll, 0); err == nil && poll[0].Revents&unix.POLLERR != 0 {
			n.forget(wake)
		}
	}
}

func (n *inotifyHub) forget(wake int) {
	delete(n.wakes, wake)
	_ = unix.Close(wake)
}

// withInotifyLimit adds the name and the value of the inotify limit to an error if the error means that the limit is
// reached.
func withInotifyLimit(err error) error {
	name := ""
	switch {
	case errors.Is(err, unix.EMFILE):
		name = "max_user_instances"
	case errors.Is(err, unix.ENOSPC):
		name = "max_user_watches"
	default:
		return err
	}
	most, _ := os.ReadFile("/proc/sys/fs/inotify/" + name)
	return fmt.Errorf("%w: this user's programs have reached the limit fs.inotify.%s (%s); raise it with `sysctl fs.inotify.%s=...`",
		err, name, strings.TrimSpace(string(most)), name)
}

// limitInotify limits the number of inotify instances in this user namespace, so that programs in it can't use up the
// user's limit. It returns the parts of the rules that could not be enforced.
func limitInotify() []string {
	const file = "/proc/sys/user/max_inotify_instances"
	if err := os.WriteFile(file, fmt.Append(nil, maxInotify), 0); err != nil {
		return []string{partInotify}
	}
	return nil
}
