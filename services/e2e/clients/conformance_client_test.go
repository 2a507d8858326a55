package clients_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/npm"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// The conformance suite for clients starts this test binary as the client, with both of these environment variables
// set. suiteTestVariable contains the address of the test, which sends the client the URL to use. suiteClientVariable
// contains the path of the client program.
const (
	suiteTestVariable   = "SLUICE_TEST_CLIENTS_TEST"
	suiteClientVariable = "SLUICE_TEST_CLIENT"
)

// runSuiteClient sends the URL of a scenario's server to the test. It then runs the client program with the URL that
// the test returns.
func runSuiteClient() int {
	err := func() error {
		test, err := new(net.Dialer).DialContext(context.Background(), "tcp", os.Getenv(suiteTestVariable))
		if err != nil {
			return err
		}
		defer test.Close()
		fmt.Fprintln(test, os.Args[len(os.Args)-1])
		url, err := bufio.NewReader(test).ReadString('\n')
		if err != nil {
			return err
		}
		client := exec.CommandContext(context.Background(), os.Getenv(suiteClientVariable), strings.TrimSpace(url))
		client.Stdout, client.Stderr = os.Stdout, os.Stderr
		return client.Run()
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// summaryLine matches the suite's summary of one scenario.
var summaryLine = regexp.MustCompile(`(?m)^Passed: (\d+)/(\d+), (\d+) failed, (\d+) warnings$`)

// runClientScenario runs a scenario of the official suite for clients. The suite starts a server at a URL, the function
// reached converts this URL, and the client connects to the converted URL. runClientScenario returns the number of
// checks that pass, and the suite's output if a check fails.
func runClientScenario(t *testing.T, name, client string, reached func(url string) string) (passed int, wrong string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lis, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := append(npmtest.ConformanceOfClients(t, npm.Conformance2), "--scenario", name, "--command", self)
	suite := exec.CommandContext(ctx, command[0], command[1:]...)
	suite.Dir = t.TempDir()
	suite.Env = []string{"HOME=" + t.TempDir(), "PATH=" + filepath.Dir(command[0]), suiteTestVariable + "=" + lis.Addr().String(), suiteClientVariable + "=" + client}
	var said bytes.Buffer
	suite.Stdout, suite.Stderr = &said, &said
	if err := suite.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if suite.ProcessState == nil { // the test ended before the scenario
			_ = suite.Process.Kill()
			_ = suite.Wait()
		}
	}()
	_ = lis.SetDeadline(time.Now().Add(30 * time.Second)) // the timeout that the suite sets for a client
	asks, err := lis.Accept()
	if err != nil {
		t.Fatalf("the suite does not start the client: %v", err)
	}
	defer asks.Close()
	url, err := bufio.NewReader(asks).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(asks, reached(strings.TrimSpace(url)))
	err = suite.Wait() // Wait returns an error if a check fails
	found := summaryLine.FindStringSubmatch(said.String())
	if found == nil {
		t.Fatalf("the suite has no summary: %v\n%s", err, &said)
	}
	passed, _ = strconv.Atoi(found[1]) // the expression matches only digits
	if err != nil || found[1] != found[2] || found[3] != "0" || found[4] != "0" {
		return passed, said.String()
	}
	return passed, ""
}

// TestConformance_ClientsPassThroughTheMesh runs the official suite for clients with the official SDK's client, both
// directly and through a mesh. Through a mesh, the suite's servers check the mesh's requests. The OAuth scenarios are
// left out: the mesh authenticates its clients and logs in to servers itself, so a client's login does not reach the
// servers.
func TestConformance_ClientsPassThroughTheMesh(t *testing.T) {
	t.Parallel()
	client := gosdk.BuildProgram(t, "everything-client")
	for _, scenario := range []struct {
		name            string
		direct, through int
		// sessions is true if the client has a session with the mesh. The client always has a session with the suite's
		// server.
		sessions bool
	}{
		{"initialize", 1, 2, false}, // the suite also checks the first requests of the mesh against the schema
		{"tools_call", 2, 2, false},
		// In this scenario, the server sends a request on the session's stream. A client without a session has no such
		// stream.
		{"elicitation-sep1034-client-defaults", 5, 5, true},
		{"sse-retry", 3, 3, false},
		{"sep-2322-client-request-state", 5, 5, false},
		{"http-standard-headers", 9, 9, false},
		{"http-custom-headers", 18, 18, false},
		{"http-invalid-tool-headers", 12, 12, false},
		{"json-schema-ref-no-deref", 1, 1, false},
		{"json-schema-2020-12-preservation", 9, 9, false},
		// The scenario request-metadata is left out. Its server refuses the first request and reports the revision of
		// that request as the only revision that it supports. The mesh asks for the supported revisions only once, so
		// it finds no revision to use.
	} {
		t.Run(scenario.name, func(t *testing.T) {
			if direct, wrong := runClientScenario(t, scenario.name, client, func(url string) string { return url }); direct != scenario.direct || wrong != "" {
				t.Errorf("without the mesh the client passes %d checks, want %d\n%s", direct, scenario.direct, wrong)
			}
			through, wrong := runClientScenario(t, scenario.name, client, func(url string) string {
				s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  suite: {http: {url: %q}}", url), Policy: `version: 1
default: allow
rules:
  - {name: every-method, match: {method: "*"}, action: allow}
`})
				if scenario.sessions {
					return startAuthenticatingProxy(t, gosdk.SessionsOnlyProxy(t, s.MCP("suite")))
				}
				return startAuthenticatingProxy(t, s.MCP("suite"))
			})
			if through < scenario.through || wrong != "" { // requests of the mesh itself may also arrive in time to be checked
				t.Errorf("through the gateway %d checks pass, want %d\n%s", through, scenario.through, wrong)
			}
		})
	}
}
