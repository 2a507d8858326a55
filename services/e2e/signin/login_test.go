package signin_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// login runs `sluice login` until it exits, and acts as the person, who opens the printed page. It returns the standard
// output of the command.
func login(t *testing.T, mesh *stack.Process, args ...string) (stdout string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), signInTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, stack.Program(t, "sluice"), append([]string{"login", "-o", "json"}, args...)...)
	cmd.Env = append(os.Environ(), "SLUICE_CONFIG="+mesh.Config, "DBUS_SESSION_BUS_ADDRESS=unix:path=/nonexistent")
	cmd.Dir = mesh.Dir
	return runInBrowser(ctx, cmd)
}

// runInBrowser runs a command until it exits, and acts as the person, who opens the page that the command prints. It
// returns the standard output of the command.
func runInBrowser(ctx context.Context, cmd *exec.Cmd) (stdout string, err error) {
	var out, said strings.Builder
	cmd.Stdout = &out
	errs, err := cmd.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	var visitErr error
	for lines := bufio.NewScanner(io.TeeReader(errs, &said)); lines.Scan(); {
		for word := range strings.FieldsSeq(lines.Text()) {
			page, err := url.Parse(word)
			if err != nil || !page.Query().Has("code_challenge") && !page.Query().Has("user_code") || visitErr != nil {
				continue
			}
			_, visitErr = browse(ctx, word, page.Query().Get("redirect_uri")) // the device flow has no redirect URI
		}
	}
	if err := cmd.Wait(); err != nil || visitErr != nil {
		return "", fmt.Errorf("%w: %s", errors.Join(err, visitErr), said.String())
	}
	return out.String(), nil
}

// withSession runs a command with the stored session.
func withSession(t *testing.T, mesh *stack.Process, args ...string) stack.CommandResult {
	t.Helper()
	return stack.Run(t, stack.Command{Args: args, Dir: mesh.Dir, Env: []string{"SLUICE_CONFIG=" + mesh.Config, "DBUS_SESSION_BUS_ADDRESS=unix:path=/nonexistent"}})
}

// A person signs in at each provider, as a viewer and as an operator, and signs out. There is no keychain.
func TestLogin_PersonSignsIn(t *testing.T) {
	t.Parallel()
	for name, start := range providers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			mesh, _ := startMesh(t, p)
			out, err := login(t, mesh, "--no-browser")
			if err != nil {
				t.Fatal(err)
			}
			session := stack.DecodeOutput[struct {
				Subject, Role string
				Roles         []string
			}](t, stack.CommandResult{Stdout: out})
			if session.Subject != "idp/"+p.subject || session.Role != "viewer" || len(session.Roles) != 2 {
				t.Fatalf("the session is %s", out)
			}
			if ran := withSession(t, mesh, "whoami"); ran.Code != 0 || !strings.Contains(ran.Stdout, "idp/"+p.subject) {
				t.Errorf("whoami: %+v", ran)
			}
			if ran := withSession(t, mesh, "token", "create", "ci"); ran.Code == 0 || !strings.Contains(ran.Stderr, "viewer") {
				t.Errorf("a viewer has created a token: %+v", ran)
			}
			if _, err := login(t, mesh, "--no-browser", "--role", "operator"); err != nil {
				t.Fatal(err)
			}
			if ran := withSession(t, mesh, "token", "create", "ci"); ran.Code != 0 {
				t.Errorf("an operator can't create a token: %+v", ran)
			}
			if ran := withSession(t, mesh, "token", "list", "--all"); !strings.Contains(ran.Stdout, "idp/"+p.subject) || strings.Count(ran.Stdout, "login-") != 2 || !strings.Contains(ran.Stdout, "revoked") {
				t.Errorf("the sessions are not listed, or the first has not ended: %+v", ran)
			}
			secret := sessionSecret(t, mesh)
			if ran := withSession(t, mesh, "logout"); ran.Code != 0 {
				t.Errorf("logout: %+v", ran)
			}
			if ran := stack.Run(t, stack.Command{Args: []string{"whoami"}, Dir: mesh.Dir, Env: []string{"SLUICE_CONFIG=" + mesh.Config, "SLUICE_TOKEN=" + secret}}); ran.Code == 0 || !strings.Contains(ran.Stderr, "sign in again") {
				t.Errorf("the token of an ended session: %+v", ran)
			}
			if ran := withSession(t, mesh, "logout"); ran.Code != 0 || !strings.Contains(ran.Stdout, "no session") {
				t.Errorf("a second logout: %+v", ran)
			}
		})
	}
}

// sessionSecret returns the stored token of the session. Only its owner can read the file.
func sessionSecret(t *testing.T, mesh *stack.Process) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(mesh.Dir, "*", "secrets", ".sessions", "*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	info, err := os.Stat(found[0])
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	raw, err := os.ReadFile(found[0])
	if err != nil || !strings.HasPrefix(string(raw), "slc1_s_") {
		t.Fatalf("%s: %v", found[0], err)
	}
	return string(raw)
}

// The person confirms the code on another device.
func TestLogin_ByDevice(t *testing.T) {
	t.Parallel()
	for name, start := range providers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			if !p.hasDeviceFlow {
				t.Skip("the client may not use the device flow there")
			}
			mesh, _ := startMesh(t, p)
			out, err := login(t, mesh, "--device")
			if err != nil || !strings.Contains(out, "idp/"+p.subject) {
				t.Errorf("%s: %v", out, err)
			}
		})
	}
}

// If a person may not have the requested role, the error lists the roles that she may have.
func TestLogin_RefusesRolesOfOtherGroups(t *testing.T) {
	t.Parallel()
	p := providers()["oidc-provider"](t)
	mesh, _ := startMesh(t, p)
	_, err := login(t, mesh, "--no-browser", "--role", "approver")
	if err == nil || !strings.Contains(err.Error(), "may be viewer, operator, but not approver") {
		t.Errorf("the error is %v", err)
	}
}

// The providers say when the person has authenticated. A class that a provider does not know is refused, because the
// provider ignores the request for it.
func TestLogin_AsksForTheAuthentication(t *testing.T) {
	t.Parallel()
	for name, start := range providers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mesh, _ := startMesh(t, start(t))
			began := time.Now().Add(-time.Minute)
			for _, flags := range [][]string{{"--no-browser"}, {"--no-browser", "--max-age", "5m"}} {
				out, err := login(t, mesh, flags...)
				if err != nil {
					t.Fatal(err)
				}
				session := stack.DecodeOutput[struct{ AuthTime time.Time }](t, stack.CommandResult{Stdout: out})
				if session.AuthTime.Before(began) || session.AuthTime.After(time.Now().Add(time.Minute)) {
					t.Errorf("%v: the time of the authentication is %v", flags, session.AuthTime)
				}
			}
			if out, err := login(t, mesh, "--no-browser", "--acr", "phr"); err == nil || !strings.Contains(err.Error(), "the sign-in asked for phr") {
				t.Errorf("a class that the provider does not know: %s, %v", out, err)
			}
		})
	}
}
