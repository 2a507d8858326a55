// Command call makes one allowed call over HTTP through a mesh in its own process. It writes the coverage data of this
// call to the directory in its argument. It must be built with -cover. See command callpath.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/coverage"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/bench"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice"
)

const (
	readyTimeout = 10 * time.Second

	policy = `version: 1
name: way
server: echo
default: deny
rules:
  - {name: say, match: {tool: say}, action: allow}
`
	hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"way","version":"1"}}}`
	ready = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	call  = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"say","arguments":{"text":"hello"}}}`
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "call: the argument is missing: name the folder for the coverage data")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "call:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out string) (err error) {
	dir, err := os.MkdirTemp("", "sluice-way-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	echo := httptest.NewServer(bench.NewEcho())
	defer echo.Close()
	token := authn.NewSecret()
	f, err := write(dir, echo.URL, token)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	mesh, err := sluice.New(ctx, sluice.Options{File: f, Env: os.LookupEnv, Version: "way", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- mesh.Run(ctx) }()
	defer func() {
		stop()
		err = errors.Join(err, <-done, mesh.Close())
	}()
	soon, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := mesh.WaitReady(soon); err != nil {
		return err
	}
	c := &client{url: "http://" + mesh.MCP().String() + "/mcp/echo", token: token}
	for _, body := range []string{hello, ready, call, call} { // the first three requests run code that must not be counted
		if err := c.post(ctx, body); err != nil {
			return err
		}
	}
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	if err := c.post(ctx, call); err != nil {
		return err
	}
	return errors.Join(coverage.WriteMetaDir(out), coverage.WriteCountersDir(out))
}

// write writes the configuration file and the policy file of a mesh with one server.
func write(dir, server, token string) (*config.File, error) {
	text := fmt.Sprintf("listen: 127.0.0.1:0\ngrpc: 127.0.0.1:0\ndata: data\nauth: {tokens: [{name: way, token: %q, agent: way, role: agent}]}\nservers: {echo: {http: {url: %q}}}\npolicies: [policy.yaml]\n",
		token, server+"/mcp")
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(policy), 0o600); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "sluice.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return config.Load(path, os.LookupEnv)
}

type client struct{ url, token, session string }

func (c *client) post(ctx context.Context, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusMultipleChoices || strings.Contains(string(answer), `"isError":true`) || strings.Contains(string(answer), `"error":`) {
		return fmt.Errorf("%s was answered %s: %s", body, resp.Status, answer)
	}
	if c.session == "" {
		c.session = resp.Header.Get("Mcp-Session-Id")
	}
	return nil
}
