package npmtest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
)

// StartOIDCProvider starts the OpenID provider of the set [npm.OIDCProvider] and returns its URL. It runs until the
// test ends. The file oidc-provider.mjs describes its users and clients.
func StartOIDCProvider(t testing.TB, env ...string) (url string) {
	t.Helper()
	program, err := npm.OIDCProviderScript()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "oidc-provider.mjs")
	if err := errors.Join(
		os.Symlink(Install(t, npm.OIDCProvider).Module(""), filepath.Join(dir, "node_modules")),
		os.WriteFile(path, program, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), Node(t), path)
	cmd.Env = append(os.Environ(), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // the process ends when its input ends
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("the OpenID provider ended with %v and said:\n%s", err, said.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the OpenID provider has not started: %v", err) // its output is logged when it has ended
	}
	return strings.TrimSpace(line)
}
