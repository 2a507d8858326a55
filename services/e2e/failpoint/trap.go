package failpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// still is how long whoever steps into a trap stands still: until it is killed.
	still = time.Hour
	// look is the pause between looks at a trap.
	look = time.Millisecond
)

// Trap is a failpoint at which a program stands still, with whoever comes there
// after.
type Trap struct {
	// Point is the failpoint, and Pass how many go through it before.
	Point string
	Pass  int
	// Addr is where the program tells of its failpoints: a free address on loopback.
	Addr string
}

// Env are the variables that set the trap in a program.
func (tr Trap) Env() []string {
	term := fmt.Sprintf("sleep(%d)", still.Milliseconds())
	if tr.Pass > 0 {
		term = fmt.Sprintf("%d*off->%s", tr.Pass, term)
	}
	return []string{"GOFAIL_FAILPOINTS=" + tr.Point + "=" + term, "GOFAIL_HTTP=" + tr.Addr}
}

// Await waits until somebody stands in the trap. Its error says that nobody came
// before ctx ended.
func (tr Trap) Await(ctx context.Context) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		came, err := tr.came(ctx)
		if err == nil && came > tr.Pass {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the failpoint %s was not hit: %d came by, %d were to pass: %w", tr.Point, came, tr.Pass, errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

// came is how many have come to the failpoint.
func (tr Trap) came(ctx context.Context) (int, error) {
	text, err := tr.ask(ctx, tr.Point+"/count")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// Points are the failpoints of a running program, sorted.
func (tr Trap) Points(ctx context.Context) ([]string, error) {
	text, err := tr.ask(ctx, "")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

func (tr Trap) ask(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+tr.Addr+"/"+path, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the program answered %s: %s", resp.Status, text)
	}
	return string(text), err
}
