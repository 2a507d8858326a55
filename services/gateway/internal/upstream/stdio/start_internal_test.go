package stdio

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// after returns the time after which a start times out if the process writes to standard error at the given times.
func after(t *testing.T, fixed time.Duration, writes ...time.Duration) time.Duration {
	t.Helper()
	var lasted time.Duration
	synctest.Test(t, func(t *testing.T) {
		var s startTime
		begun := time.Now()
		ctx, end := s.begin(fixed)
		defer end()
		for _, at := range writes {
			time.AfterFunc(at, s.wrote)
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			t.Errorf("it ended with %v", context.Cause(ctx))
		}
		lasted = time.Since(begun)
		if outcome := s.lasted(fixed); outcome != lasted.Round(time.Second) {
			t.Errorf("it says that it lasted %v, and did %v", outcome, lasted)
		}
	})
	return lasted
}

func TestStartTime_IsLongerWhileTheProcessWrites(t *testing.T) {
	t.Parallel()
	var always []time.Duration
	for at := time.Second; at < time.Hour; at += 20 * time.Second {
		always = append(always, at)
	}
	for name, c := range map[string]struct {
		fixed  time.Duration
		writes []time.Duration
		want   time.Duration
	}{
		"silent":                      {want: startLimit},
		"writes early":                {writes: []time.Duration{time.Second, 20 * time.Second}, want: startLimit},
		"writes late":                 {writes: []time.Duration{50 * time.Second, 75 * time.Second}, want: 105 * time.Second},
		"writes once it is too late":  {writes: []time.Duration{61 * time.Second}, want: startLimit},
		"writes without an end":       {writes: always, want: maxStart},
		"configured":                  {fixed: 5 * time.Minute, want: 5 * time.Minute},
		"configured, short, it talks": {fixed: 2 * time.Second, writes: always, want: 2 * time.Second},
		"configured, long, it talks":  {fixed: 20 * time.Minute, writes: always, want: 20 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := after(t, c.fixed, c.writes...); got != c.want {
				t.Errorf("it lasts %v, want %v", got, c.want)
			}
		})
	}
}

func TestPackageOf_ReturnsInstalledPackage(t *testing.T) {
	t.Parallel()
	for want, commands := range map[string][][]string{
		"npx @scope/server": {
			{"npx", "-y", "@scope/server", "/srv"}, {"/usr/bin/npx", "--yes", "@scope/server"}, {"npx", "-p", "@scope/server", "other"},
			{"npx", "--package=@scope/server", "other"}, {"npx.cmd", "-y", "--", "@scope/server"},
		},
		"uvx mcp-git":       {{"uvx", "mcp-git", "--repository", "/x"}, {"uvx", "--from", "mcp-git", "run-it"}},
		"pipx mcp-git":      {{"pipx", "run", "mcp-git"}, {"pipx", "run", "--spec", "mcp-git", "x"}},
		"uv mcp-git":        {{"uv", "tool", "run", "mcp-git"}, {"uv", "run", "mcp-git"}, {"uv", "run", "--with", "mcp-git", "x.py"}},
		"npm @scope/server": {{"npm", "exec", "--", "@scope/server"}, {"npm", "x", "@scope/server"}},
		"pnpm x":            {{"pnpm", "dlx", "x"}},
		"":                  {{"node", "server.js"}, {"npm", "start"}, {"pipx", "list"}, {"python3", "server.py"}, {"uv", "sync"}},
	} {
		for _, command := range commands {
			if got := packageOf(command); got != want {
				t.Errorf("%q installs %q, want %q", command, got, want)
			}
		}
	}
}

func TestInstalls_OneOfAPackageAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all Installs
		first, err := all.wait(t.Context(), "npx a")
		if err != nil {
			t.Fatal(err)
		}
		for _, free := range []string{"npx b", "", ""} {
			done, err := all.wait(t.Context(), free)
			if err != nil {
				t.Fatal(err)
			}
			defer done()
		}
		got := make(chan string, 3)
		var turn func()
		go func() {
			done, err := all.wait(t.Context(), "npx a")
			turn = done
			got <- "second " + text(err)
		}()
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("two install at a time")
		}
		stopped, stop := context.WithCancelCause(t.Context())
		go func() {
			_, err := all.wait(stopped, "npx a")
			got <- "third " + text(err)
		}()
		synctest.Wait()
		stop(errors.New("the gateway stops"))
		if outcome := <-got; outcome != "third the gateway stops" {
			t.Error(outcome)
		}
		first()
		first() // idempotent
		if outcome := <-got; outcome != "second " {
			t.Error(outcome)
		}
		begun := time.Now()
		if _, err := all.wait(t.Context(), "npx a"); err == nil || time.Since(begun) != maxInstall {
			t.Errorf("behind an installation that does not end: %v after %v", err, time.Since(begun))
		}
		turn()
		if retry, err := all.wait(t.Context(), "npx a"); err != nil {
			t.Error(err)
		} else {
			retry()
		}
		if all.running["npx a"] != nil {
			t.Error("an installation that has ended is remembered")
		}
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
