//go:build unix

package stdio_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

func TestOpen_SaysWhyAServerDoesNotStart(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := func(words ...string) func(*stdio.Config) {
		return func(c *stdio.Config) { c.Command, c.Path = words, "relative:"+dir }
	}
	hasty := func(c *stdio.Config) { c.Start = 300 * time.Millisecond }
	for name, c := range map[string]struct {
		role string
		edit func(*stdio.Config)
		want error // nil if the error depends on the speed of the process
		says []string
	}{
		"no such program on PATH": {"good", command("nonesuch"), upstream.ErrNeverSent, []string{`"nonesuch"`, dir}},
		"no such file":            {"good", command("/nonesuch/x"), upstream.ErrNeverSent, []string{"/nonesuch/x", "no such file"}},
		"a file without the bit":  {"good", command(plain), upstream.ErrNeverSent, []string{plain, "can't be executed"}},
		"no such folder": {"good", func(c *stdio.Config) { c.Dir = "/nonesuch" },
			upstream.ErrNeverSent, []string{"/nonesuch", "no such file"}},
		"it exits at once": {"exits", nil, nil,
			[]string{program, "ended by itself", "exit status 7", `"first words" "no licence found"`}},
		"it does not answer": {"mute", hasty, upstream.ErrTimeout, []string{program, "did not answer initialize within 300ms"}},
		"it talks nonsense": {"babbles", hasty, upstream.ErrTimeout,
			[]string{"did not answer initialize", "3 lines of its standard output were not messages"}},
		"it refuses": {"refuses", nil, upstream.ErrNoAnswer, []string{"refused initialize", "not on a Monday"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.role, c.edit)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, _, err := r.Open(ctx, ana, hello(1))
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Fatalf("the error is %v, want %v", err, c.want)
			}
			for _, text := range append(c.says, `"fake"`) {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("the error %q lacks %q", err, text)
				}
			}
		})
	}
}

func TestOpen_WaitsNoLongerThanItsCaller(t *testing.T) {
	t.Parallel()
	r := newRig(t, "mute", nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err := r.Open(ctx, ana, hello(1))
	if cause := upstream.CauseOf(err); !errors.Is(err, upstream.ErrNeverSent) || cause == nil || cause.Text != "the server is still starting" || cause.RetryAfter <= 0 {
		t.Errorf("the error is %v, want that it is still starting", err)
	}
}

// A server is still starting. The caller gets an error shortly before the caller's deadline, because a client with the
// same deadline would not receive a later answer.
func TestOpen_AnswersBeforeTheDeadlineWhileAServerStarts(t *testing.T) {
	t.Parallel()
	r := newRig(t, "mute", nil)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	_, _, err := r.Open(ctx, ana, hello(1))
	if upstream.CauseOf(err) == nil || ctx.Err() != nil {
		t.Errorf("the error is %v, and the context %v", err, ctx.Err())
	}
}

func TestRequest_StartsAnotherProcessAfterADeath(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	one, two := r.open(t, ana), r.open(t, ana)
	one.call(1, "save", map[string]string{"text": "remember me"})
	before := one.call(2, "info", nil)
	waiting := two.begin(1, "hold", map[string]string{"key": "first"})
	eventually.Holds(t, "the call is held", func() bool { return one.call(3, "info", nil)["held"] == "first" })

	_, err := one.try(4, "die", nil)
	for name, err := range map[string]error{"the call that killed it": err, "another call": (<-waiting).err} {
		if !errors.Is(err, upstream.ErrNoAnswer) || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "out of cheese") {
			t.Errorf("%s ended with %v, want ErrNoAnswer and the last words", name, err)
		}
	}
	after := one.call(5, "info", nil)
	if after["pid"] == before["pid"] || after["inits"] != "1" || after["ready"] != "1" {
		t.Errorf("after the death process %s answers, initialized %s times; before it was %s", after["pid"], after["inits"], before["pid"])
	}
	if after["dir"] != before["dir"] || after["note"] != "remember me" {
		t.Errorf("the new process works in %s and found %q, the old one worked in %s", after["dir"], after["note"], before["dir"])
	}
	if got := two.call(6, "info", nil)["pid"]; got != after["pid"] {
		t.Errorf("the other session's process is %s, want %s", got, after["pid"])
	}
}

func TestOpen_PausesAfterFailedStarts(t *testing.T) {
	t.Parallel()
	r := newRig(t, "exits", nil)
	const free = 4 // the first start, and three shortly after it
	begun := time.Now()
	for range free {
		if _, _, err := r.Open(t.Context(), ana, hello(1)); err == nil || strings.Contains(err.Error(), "start again") {
			t.Fatalf("the error is %v, want that of a start", err)
		}
	}
	want := regexp.MustCompile(`may start again in \d+m?s; last: .*no licence found`)
	refused := 0
	starts := func() int { return strings.Count(r.log.String(), "server process started") }
	eventually.Holds(t, "two more starts", func() bool {
		_, _, err := r.Open(t.Context(), ana, hello(1))
		if errors.Is(err, upstream.ErrNeverSent) && want.MatchString(err.Error()) {
			refused++
		}
		return starts() == free+2
	})
	if least := 2 * time.Second; time.Since(begun) < least || refused == 0 {
		t.Errorf("%d starts took %s, %d were refused; want at least %s and some refused like %q", free+2, time.Since(begun), refused, least, want)
	}
}

func TestRequest_EndsWhenTheProcessDoesNotRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", func(c *stdio.Config) { c.WriteTimeout = 2 * time.Second })
	one, two := r.open(t, ana), r.open(t, ana)
	one.call(1, "deaf", nil)
	large := one.begin(2, "info", map[string]string{"text": strings.Repeat("x", 1<<20)})
	// The stuck message is larger than the pipe's buffer, so no other message can be written.
	eventually.Holds(t, "a request behind the one that is stuck is never sent", func() bool {
		brief, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := two.conn.Request(brief, toolCall(1, "info", nil), nil)
		return errors.Is(err, upstream.ErrNeverSent)
	})
	got := <-large
	if !errors.Is(got.err, upstream.ErrNoAnswer) || !strings.Contains(got.err.Error(), "did not read its standard input for 2s") {
		t.Errorf("the call that is stuck ended with %v, want ErrNoAnswer", got.err)
	}
	two.call(2, "info", nil) // the next process answers this call
}
