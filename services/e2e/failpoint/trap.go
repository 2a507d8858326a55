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
	// blockTime is how long a goroutine blocks at a failpoint. The test kills the process before this time is over.
	blockTime = time.Hour
	// pollInterval is the interval at which Await requests the number of hits.
	pollInterval = time.Millisecond
)

// Trap makes a program block at a failpoint.
type Trap struct {
	// Point is the failpoint's name, and Pass is the number of hits that do not block.
	Point string
	Pass  int
	// Addr is a free loopback address. At this address, the program serves the state of its failpoints over HTTP.
	Addr string
}

// Env returns the environment variables that enable the failpoint in a program.
func (tr Trap) Env() []string {
	term := fmt.Sprintf("sleep(%d)", blockTime.Milliseconds())
	if tr.Pass > 0 {
		term = fmt.Sprintf("%d*off->%s", tr.Pass, term)
	}
	return []string{"GOFAIL_FAILPOINTS=" + tr.Point + "=" + term, "GOFAIL_HTTP=" + tr.Addr}
}

// Await waits until a hit blocks at the failpoint. It returns an error if ctx is done first.
func (tr Trap) Await(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		came, err := tr.hits(ctx)
		if err == nil && came > tr.Pass {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the failpoint %s was not hit: %d hits, %d of them without blocking: %w", tr.Point, came, tr.Pass, errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

func (tr Trap) hits(ctx context.Context) (int, error) {
	text, err := tr.get(ctx, tr.Point+"/count")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// Points returns the failpoints' names in a running program, sorted.
func (tr Trap) Points(ctx context.Context) ([]string, error) {
	text, err := tr.get(ctx, "")
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

func (tr Trap) get(ctx context.Context, path string) (string, error) {
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
		err = fmt.Errorf("the program responded with %s: %s", resp.Status, text)
	}
	return string(text), err
}
