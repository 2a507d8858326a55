package stack

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Distributed is a mesh in which each mesh service runs in its own process and has only its own key.
type Distributed struct {
	*Stack
	// Authority is the CA that every mesh service trusts.
	Authority *pki.Authority

	addrs map[authv1.Role]string
	roles map[authv1.Role]*roleProcess
	env   []string
}

// roleProcess is the process of a mesh service. Its log contains the output of all starts of the service.
type roleProcess struct {
	cmd *exec.Cmd
	// ended is closed when the process has exited. After that, err contains the result of cmd.Wait.
	ended chan struct{}
	err   error
	log   *output
	// program, if it is not empty, replaces the service's program. env contains additional environment variables for
	// the process. [Distributed.ReplaceProgram] sets program and env.
	program string
	env     []string
}

// StartDistributed starts the programs of all mesh services with one configuration and the given additional environment
// variables, and waits until all of them serve. They are killed when the test ends.
func StartDistributed(t *testing.T, opts Options, env ...string) *Distributed {
	t.Helper()
	a := &Distributed{addrs: make(map[authv1.Role]string), roles: make(map[authv1.Role]*roleProcess), env: env}
	var places strings.Builder
	for _, role := range authn.Roles() {
		a.addrs[role] = FreeAddr(t)
		fmt.Fprintf(&places, "  %s: {listen: %q, addr: %q}\n", authn.RoleName(role), a.addrs[role], a.addrs[role])
	}
	opts.Listen = FreeAddr(t)
	opts.Extra += "\nroles:\n" + places.String()
	a.Stack = WriteConfig(t, opts)
	a.URL = "http://" + opts.Listen
	a.certify(t)
	for _, role := range authn.Roles() {
		a.roles[role] = &roleProcess{log: new(output)}
		a.Start(t, role)
	}
	for _, role := range authn.Roles() {
		a.AwaitServing(t, role)
	}
	a.AwaitReady(t)
	return a
}

// certify creates a certificate directory for each mesh service. The directory contains only that service's key.
func (a *Distributed) certify(t *testing.T) {
	t.Helper()
	var err error
	if a.Authority, err = pki.NewAuthority(); err != nil {
		t.Fatal(err)
	}
	for _, role := range authn.Roles() {
		if err := a.Authority.WriteRole(a.certFolder(role), role); err != nil {
			t.Fatal(err)
		}
	}
}

func (a *Distributed) certFolder(role authv1.Role) string {
	return filepath.Join(a.Dir, "certs", authn.RoleName(role))
}

// Addr returns the address at which a mesh service serves gRPC.
func (a *Distributed) Addr(role authv1.Role) string { return a.addrs[role] }

// Start starts the process of a mesh service and does not wait until it serves. The service must not be running.
func (a *Distributed) Start(t *testing.T, role authv1.Role) {
	t.Helper()
	p := a.roles[role]
	p.cmd, p.ended = a.command(t, role), make(chan struct{})
	p.cmd.Stderr, p.cmd.Env = p.log, append(p.cmd.Env, p.env...)
	if p.program != "" {
		p.cmd.Path = p.program
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, ended := p.cmd, p.ended
	go func() {
		defer close(ended)
		p.err = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the process may have ended already
		<-ended
	})
}

// ReplaceProgram makes later starts of a mesh service run another program, with additional environment variables. An
// empty program selects the service's own program.
func (a *Distributed) ReplaceProgram(role authv1.Role, program string, env ...string) {
	a.roles[role].program, a.roles[role].env = program, env
}

// command returns the command that runs the program of a mesh service with the mesh's configuration. The certificate
// directory is passed in the environment, so that all services can share one configuration file.
func (a *Distributed) command(t *testing.T, role authv1.Role, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(Program(t, authn.RoleName(role)), append([]string{"--config", a.Config}, args...)...)
	cmd.Dir = a.Dir
	cmd.Env = environ(append([]string{"SLUICE_TLS_DIR=" + a.certFolder(role)}, a.env...)...)
	return cmd
}

// AwaitServing waits until the health probe of a mesh service succeeds.
func (a *Distributed) AwaitServing(t *testing.T, role authv1.Role) {
	t.Helper()
	var last []byte
	a.await(t, authn.RoleName(role)+" to serve", func() bool {
		var err error
		last, err = a.command(t, role, "-probe").CombinedOutput()
		return err == nil
	}, func() string { return string(last) + a.Log(role) })
}

// AwaitReady waits until the gateway reports that it is ready and that all mesh services are available.
func (a *Distributed) AwaitReady(t *testing.T) {
	t.Helper()
	var text string
	a.await(t, "the gateway to be ready", func() bool {
		var status int
		status, text = a.Ready(t)
		return status == http.StatusOK && text == "ready\n"
	}, func() string { return text + a.Log(authv1.Role_ROLE_GATEWAY) })
}

// Ready requests /readyz and returns the response's status and body. On a transport error the status is 0 and the body
// is the error message.
func (a *Distributed) Ready(t *testing.T) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.URL+"/readyz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// await polls until holds returns true. If this takes longer than readyTimeout, the test fails with a message that
// contains the string that known returns.
func (a *Distributed) await(t *testing.T, what string, holds func() bool, known func() string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(readyTimeout); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s:\n%s", readyTimeout, what, known())
		}
	}
}

// Kill kills the process of a mesh service with SIGKILL, and waits until it has exited.
func (a *Distributed) Kill(t *testing.T, role authv1.Role) {
	t.Helper()
	p := a.roles[role]
	_ = p.cmd.Process.Kill() // the process may have ended already
	<-p.ended
}

// Stop stops the process of a mesh service with SIGTERM, as an orchestrator does, and returns its exit error, or nil.
func (a *Distributed) Stop(t *testing.T, role authv1.Role) error {
	t.Helper()
	a.Signal(t, role, syscall.SIGTERM)
	return a.Wait(role)
}

// Wait waits until the process of a mesh service has exited after a signal. It returns the exit error, or nil.
func (a *Distributed) Wait(role authv1.Role) error {
	p := a.roles[role]
	select {
	case <-p.ended:
		return p.err
	case <-time.After(stopTimeout):
		return fmt.Errorf("%s did not stop within %v", authn.RoleName(role), stopTimeout)
	}
}

// Signal sends a signal to the process of a mesh service. After SIGSTOP it waits until the process has stopped, which
// takes a moment on a busy machine.
func (a *Distributed) Signal(t *testing.T, role authv1.Role, sig syscall.Signal) {
	t.Helper()
	process := a.roles[role].cmd.Process
	if err := process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if sig != SIGSTOP {
		return
	}
	var state string
	a.await(t, authn.RoleName(role)+" has stopped", func() bool {
		out, err := exec.CommandContext(t.Context(), "ps", "-o", "state=", "-p", strconv.Itoa(process.Pid)).Output()
		state = strings.TrimSpace(string(out))
		return err == nil && strings.HasPrefix(state, "T")
	}, func() string { return "its state is " + state })
}

// Log returns everything that a mesh service has logged since its first start.
func (a *Distributed) Log(role authv1.Role) string { return a.roles[role].log.String() }

// DialWithToken returns a connection to a mesh service. The connection sends token with each call, or no token if token
// is empty.
func (a *Distributed) DialWithToken(t *testing.T, role authv1.Role, token string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.DialPerson(a.addrs[role], token, rpc.ClientTLS(nil, a.Authority.Pool(), role))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// IssueIdentity issues a certificate for a mesh service from the mesh's CA.
func (a *Distributed) IssueIdentity(t *testing.T, role authv1.Role) *pki.Identity {
	t.Helper()
	certPEM, keyPEM, err := a.Authority.Issue(pki.RoleLeaf(role))
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.NewIdentity(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// DialWithCertificate returns a connection to a mesh service. The connection presents cert, or no certificate if cert
// is nil. Calls fail at once while the service is unavailable.
func (a *Distributed) DialWithCertificate(t *testing.T, role authv1.Role, cert *tls.Certificate) *grpc.ClientConn {
	t.Helper()
	return a.DialWithCredentials(t, role, credentials.NewTLS(rpc.ClientTLS(cert, a.Authority.Pool(), role)))
}

// DialWithCredentials is like [Distributed.DialWithCertificate] but accepts any transport credentials.
func (a *Distributed) DialWithCredentials(t *testing.T, role authv1.Role, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+a.addrs[role], grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TimeoutContext returns a context with a timeout of readyTimeout, which limits how long a start takes.
func TimeoutContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	t.Cleanup(cancel)
	return ctx
}

// ReplaceCertificate replaces the key and the certificate of a mesh service while the service is running.
func (a *Distributed) ReplaceCertificate(t *testing.T, role authv1.Role) {
	t.Helper()
	if err := a.Authority.WriteRole(a.certFolder(role), role); err != nil {
		t.Fatal(err)
	}
}

// CertFolder returns the directory that contains the key of a mesh service.
func (a *Distributed) CertFolder(role authv1.Role) string { return a.certFolder(role) }

// StartReplica starts another process of a mesh service and waits until it serves. The process has its own data
// directory and addresses. reach contains the addresses at which the process connects to some of the other services.
// The returned mesh controls only the new process, and has this mesh's addresses for all other services.
func (a *Distributed) StartReplica(t *testing.T, role authv1.Role, reach map[authv1.Role]string) *Distributed {
	t.Helper()
	text, err := os.ReadFile(a.Config)
	if err != nil {
		t.Fatal(err)
	}
	name := authn.RoleName(role) + "-beside"
	b := &Distributed{Stack: new(Stack), Authority: a.Authority, addrs: maps.Clone(a.addrs), roles: map[authv1.Role]*roleProcess{role: {log: new(output)}}, env: a.env}
	*b.Stack = *a.Stack
	b.Config, b.URL, b.addrs[role] = filepath.Join(a.Dir, name+".yaml"), "http://"+FreeAddr(t), FreeAddr(t)
	own := []string{strings.TrimPrefix(a.URL, "http://"), strings.TrimPrefix(b.URL, "http://"), a.addrs[role], b.addrs[role], "\ndata: data\n", "\ndata: " + name + "\n"}
	for other, addr := range reach {
		own = append(own, fmt.Sprintf("addr: %q", a.addrs[other]), fmt.Sprintf("addr: %q", addr))
	}
	WriteFile(t, b.Config, strings.NewReplacer(own...).Replace(string(text)))
	b.Start(t, role)
	b.AwaitServing(t, role)
	return b
}
