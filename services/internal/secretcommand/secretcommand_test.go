package secretcommand_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/secretcommand"
)

func shell(script string) secretcommand.Command {
	return secretcommand.Command{Args: []string{"sh", "-c", script}, Timeout: time.Minute}
}

func TestRun_ReturnsOutputWithoutTrailingNewlines(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"printf token":                  "token",
		"echo token":                    "token",
		`printf 'token\r\n'`:            "token",
		`printf 'two\nlines\n'`:         "two\nlines",
		"printf ' spaces '":             " spaces ",
		"echo Zażółć; echo warning >&2": "Zażółć",
		// A process that the command has started in the background keeps the output open.
		"sleep 30 & echo token": "token",
	} {
		if got, err := secretcommand.Run(t.Context(), shell(script)); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", script, got, err, want)
		}
	}
}

// No shell interprets the arguments.
func TestRun_ArgumentsAreNotInterpreted(t *testing.T) {
	t.Parallel()
	got, err := secretcommand.Run(t.Context(), secretcommand.Command{Args: []string{"echo", "$HOME; `id` | x"}, Timeout: time.Minute})
	if want := "$HOME; `id` | x"; err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

func TestRun_UsesDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if got, err := secretcommand.Run(t.Context(), secretcommand.Command{Args: []string{"pwd"}, Dir: dir, Timeout: time.Minute}); err != nil || got != dir {
		t.Errorf("%q, %v; want %q", got, err, dir)
	}
}

// An error says what to do. It contains the first line of standard error, but never the secret.
func TestRun_Errors(t *testing.T) {
	t.Parallel()
	const secret = "canary-9c1d"
	for _, c := range []struct {
		name    string
		command secretcommand.Command
		want    string
	}{
		{"fails", shell("echo " + secret + "; echo >&2; echo 'you are not signed in' >&2; echo more >&2; exit 3"), "exit status 3: you are not signed in"},
		{"escape sequences", shell(`printf '\033]0;x\007bad' >&2; exit 1`), `\u001b`},
		{"a long message", shell("head -c 3000 /dev/zero | tr '\\0' x >&2; exit 1"), "xxx…"},
		{"nothing", shell("echo 'no such item' >&2"), "has printed nothing: no such item"},
		{"only newlines", shell("echo; echo"), "has printed nothing"},
		{"too long", shell("head -c 65537 /dev/zero | tr '\\0' x"), "more than 65536 bytes"},
		{"NUL", shell(`printf 'a\0b'`), "not text"},
		{"not UTF-8", shell(`printf '\377'`), "not text"},
		{"reads standard input", shell("read x || exit 4"), "exit status 4"},
		{"killed", shell("kill -9 $$"), "signal: killed"},
		{"unknown program", secretcommand.Command{Args: []string{"sluice-no-such-program"}, Timeout: time.Minute}, "is not in PATH"},
		{"missing file", secretcommand.Command{Args: []string{"/no/such/program"}, Timeout: time.Minute}, "no such file"},
		{"timeout", secretcommand.Command{Args: []string{"sleep", "60"}, Timeout: 50 * time.Millisecond}, "did not end within 50ms"},
		{"timeout of a child", secretcommand.Command{Args: []string{"sh", "-c", "sleep 60; true"}, Timeout: 50 * time.Millisecond}, "did not end within 50ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := secretcommand.Run(t.Context(), c.command)
			if got != "" || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%q, %v; want %q", got, err, c.want)
			}
			if text := err.Error(); strings.Contains(text, secret) || strings.ContainsAny(text, "\n\x1b\x07") || len(text) > 400 {
				t.Errorf("the error is %q", text)
			}
		})
	}
}

func TestRun_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := secretcommand.Run(ctx, shell("echo token")); err == nil {
		t.Error("a cancelled command has succeeded")
	}
}
