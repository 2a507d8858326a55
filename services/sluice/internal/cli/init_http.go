package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
)

// elsewhereSetup is one run of `init --http`.
type elsewhereSetup struct {
	*setup

	at personal.Elsewhere
	// client is the ID of the client to which the token belongs.
	client string
	mesh   *meshElsewhere
	// isNew is true if the token is new. authority is the new certificate authority, or nil if there is none.
	isNew     bool
	authority []byte
	// compared contains the comparisons of the servers in the plan, by name.
	compared map[string]*comparison
}

// A comparison is the result of comparing the server in a client's entry with the server in the remote mesh that would
// replace it.
type comparison struct {
	behind listedServer
	// same is the number of tools that are the same on both servers. all is the number of tools on the entry's server.
	same, all int
	// missing contains the tools that only the entry's server has. more contains the tools that only the mesh's server
	// has.
	missing, more []string
	// reason is the reason why the entry is not replaced. It is empty if the entry is replaced.
	reason string
}

// installElsewhere makes a client reach its servers through a mesh that another operator runs. It asks the person
// before it starts servers, and again before it writes files.
func (s *setup) installElsewhere(ctx context.Context) (err error) {
	e, err := s.newElsewhere()
	if err != nil {
		return err
	}
	if err := checkProgram(s.programPath()); err != nil {
		return err
	}
	if s.state, err = clientsetup.LoadState(s.paths.Data); err != nil {
		return err
	}
	if err := e.connect(ctx); err != nil {
		return err
	}
	if err := s.state.RemoveLeftovers(ctx); err != nil {
		return err
	}
	if err := e.makePlan(ctx); err != nil {
		return err
	}
	if len(s.plan.Wraps) == 0 {
		return e.storeToken(ctx)
	}
	if err := e.compare(ctx); err != nil {
		return err
	}
	if err := s.openSecrets(ctx); err != nil {
		return err
	}
	printed := len(s.plan.Left)
	s.changes = s.plan.Changes(e.entryCommand)
	s.printLeft(s.plan.Left[printed:])
	if len(s.changes) == 0 {
		return e.storeToken(ctx)
	}
	e.printChanges()
	if err := s.confirm(ctx, s.flags.yes, "Write these changes?"); err != nil {
		return errors.New("nothing was changed")
	}
	return e.write(ctx)
}

// newElsewhere checks the flags and returns a new run.
func (s *setup) newElsewhere() (*elsewhereSetup, error) {
	if len(s.clients) != 1 {
		return nil, usageError{errors.New("each client has a token of its own at the mesh: name one client, as in " + s.command("init cursor --http URL --token-file FILE"))}
	}
	at, err := s.paths.Elsewhere(s.flags.http)
	if err != nil {
		return nil, usageError{fmt.Errorf("--http: %w", err)}
	}
	if at.IsCleartext() && !s.flags.trustLoopback {
		return nil, usageError{fmt.Errorf("%s has no TLS: while no tunnel or mesh has this port, another user of this machine can take it and gets the token. Use https, with --ca-file if the mesh has a certificate authority of its own, or accept the danger with --trust-loopback", at.URL)}
	}
	return &elsewhereSetup{setup: s, at: at, client: s.clients[0].ID, compared: make(map[string]*comparison)}, nil
}

// connect reads the token and the certificate authority, and creates the client for the mesh.
func (e *elsewhereSetup) connect(ctx context.Context) error {
	token, err := e.readToken(ctx)
	if err != nil {
		return err
	}
	path, authority := e.flags.caFile, []byte(nil)
	if path != "" {
		if authority, err = readSmallFile(path); err != nil {
			return fmt.Errorf("read the certificate authority: %w", err)
		}
		e.authority = authority
	} else {
		path = e.at.Authority()
		if authority, err = os.ReadFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read the certificate authority of the mesh: %w", err)
		}
	}
	client, err := elsewhereClient(authority)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	e.mesh = &meshElsewhere{url: e.at.URL, token: token, client: client}
	return nil
}

// readToken returns the token from the token file, or the client's stored token if there is no token file. It prints
// where the token comes from. If the client has no token, readToken asks the person for a token. It does not use
// SLUICE_TOKEN, which may be an operator's token or belong to another mesh.
func (e *elsewhereSetup) readToken(ctx context.Context) (string, error) {
	e.isNew = true
	if path := e.flags.tokenFile; path != "" {
		raw, err := readSmallFile(path)
		if err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
		e.printf("init uses the token in %s for %s.", e.shownPath(path), e.at.URL)
		return checkToken(string(raw))
	}
	raw, err := e.at.ReadToken(e.client)
	if err == nil {
		e.isNew = false
		e.printf("init uses the stored token of %s for %s.", e.client, e.at.URL)
		return checkToken(string(raw))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the stored token: %w", err)
	}
	if !isInteractive(false) {
		return "", fmt.Errorf("init needs the token of %s for this mesh, and there is no terminal to ask you at: name its file with --token-file. SLUICE_TOKEN is not used, because it may be an operator's token", e.client)
	}
	token, err := e.promptHidden(ctx, "The token of "+e.client+" for "+e.at.URL+": ")
	if err != nil {
		return "", errors.New("nothing was changed: no token was given")
	}
	return checkToken(token)
}

// checkToken returns a token without surrounding white space, or an error if the text can't be a token.
func checkToken(text string) (string, error) {
	token := strings.TrimSpace(text)
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsGraphic(r) || r == ' ' }) {
		return "", errors.New("read the token: it is empty, or it contains spaces or other characters that no token has")
	}
	return token, nil
}

// promptHidden prints a question and reads a line without showing it on the terminal.
func (t *tool) promptHidden(ctx context.Context, text string) (string, error) {
	fd := int(os.Stdin.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	fmt.Fprint(t.errOut, text)
	defer fmt.Fprintln(t.errOut)
	type read struct {
		line []byte
		err  error
	}
	answer := make(chan read, 1)
	go func() { // a read can't be interrupted, so this goroutine outlives promptHidden if there is no answer
		line, err := term.ReadPassword(fd)
		answer <- read{line, err}
	}()
	select {
	case a := <-answer:
		return string(a.line), a.err
	case <-ctx.Done():
		return "", errors.Join(ctx.Err(), term.Restore(fd, before))
	}
}

// makePlan finds and prints the clients' entries whose servers also exist in the remote mesh. `init` can replace these
// entries.
func (e *elsewhereSetup) makePlan(ctx context.Context) error {
	found := e.scan(e.flags.project)
	names, err := e.mesh.servers(ctx, clientsetup.EntryNames(found))
	if err != nil {
		return err
	}
	e.plan = clientsetup.NewPlanElsewhere(clientsetup.Environment{Home: e.system.Home, Getenv: e.system.Getenv}, found, names)
	if e.flags.add {
		e.plan.AddElsewhere(names, func(server string) string { return e.at.URL + mcpPath(server) })
	}
	e.printPlan()
	used := slices.Concat(clientsetup.EntryNames(found), clientsetup.WrappedNames(found))
	unused := slices.DeleteFunc(names, func(name string) bool { return slices.Contains(used, name) })
	if len(unused) > 0 && !e.flags.add {
		e.printf("The mesh also has %s, which %s does not use: %s adds entries for them.", strings.Join(unused, ", "), e.client, e.command("init "+e.client+" --http "+e.at.URL+" --add"))
	}
	return nil
}

// storeToken is called if `init` has no entry to change. It replaces the stored token if there is a new token.
func (e *elsewhereSetup) storeToken(ctx context.Context) error {
	_, noToken := os.Stat(e.at.Token(e.client))
	switch {
	case e.isNew && noToken == nil:
		if err := e.openSecrets(ctx); err != nil {
			return err
		}
		if err := e.storeFiles(); err != nil {
			return err
		}
		e.printf("The token of %s is replaced. No entry changes.", e.client)
		return nil
	case e.plan.Wrapped > 0:
		e.printf("Nothing to do.")
		return nil
	case e.flags.add:
		return fmt.Errorf("nothing was changed: no configuration file was found that can get entries. Start the client once, so that it writes its file, and run the command again: %s", strings.Join(e.clientNames(), ", "))
	default:
		return fmt.Errorf("nothing was changed: %s has no entry that a server of the mesh can replace. To add entries: %s", e.client, e.command("init "+e.client+" --http "+e.at.URL+" --add"))
	}
}

// compare compares the server in each entry with the corresponding server in the remote mesh. If they differ, compare
// removes the entry from the plan.
func (e *elsewhereSetup) compare(ctx context.Context) error {
	left := len(e.plan.Left)
	e.askForVariables(ctx)
	e.printLeft(e.plan.Left[left:])
	servers := e.plan.New()
	if len(servers) == 0 {
		return nil
	}
	started := slices.DeleteFunc(slices.Clone(servers), func(s clientsetup.Server) bool { return e.isAdded(s.Name) })
	if err := e.confirm(ctx, e.flags.yes || len(started) == 0, startQuestion(started, "as the clients do")); err != nil {
		return errors.New("nothing was started or changed")
	}
	e.printf("Comparing %d server(s). The first start of a server may install its package.", len(servers))
	var mu sync.Mutex // guards compared and the output
	var group errgroup.Group
	group.SetLimit(maxConcurrentTrials)
	for _, s := range servers {
		group.Go(func() error {
			c := e.compareServer(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			e.compared[s.Name] = c
			if ctx.Err() == nil {
				e.printComparison(s, c)
			}
			return nil
		})
	}
	_ = group.Wait() // the errors are in compared
	if ctx.Err() != nil {
		e.printf("Stopped: nothing was changed.")
		return errSilent
	}
	for _, s := range servers {
		if c := e.compared[s.Name]; c.reason != "" {
			e.plan.Leave(s.Name, c.reason)
		}
	}
	return nil
}

// isAdded reports whether the plan contains a server only because of entries that `init` adds.
func (e *elsewhereSetup) isAdded(server string) bool {
	return !slices.ContainsFunc(e.plan.Wraps, func(w clientsetup.Wrap) bool { return w.Server == server && !w.Added })
}

func (e *elsewhereSetup) compareServer(ctx context.Context, s clientsetup.Server) *comparison {
	c := new(comparison)
	var err error
	if c.behind, err = e.mesh.list(ctx, s.Elsewhere); err != nil {
		c.reason = "does not work at the mesh: " + err.Error()
		return c
	}
	if e.isAdded(s.Name) {
		return c
	}
	direct, err := listDirectly(ctx, s.Definition)
	if err != nil {
		c.reason = "can't be compared, because it does not work on this machine: " + err.Error()
		return c
	}
	c.difference(direct)
	return c
}

// difference compares the tools of the entry's server with the tools of the mesh's server, and stores the result in c.
// The mesh's server may have fewer tools, because the mesh's policy can hide tools. But a tool on both servers must
// have the same definition.
func (c *comparison) difference(direct listedServer) {
	want, err := definitionsByName(direct.tools)
	got, err2 := definitionsByName(c.behind.tools)
	if err := errors.Join(err, err2); err != nil {
		c.reason = "can't be compared: " + err.Error()
		return
	}
	delete(got, approvalTool)
	c.all = len(want)
	for _, name := range sortedNames(want, got) {
		switch {
		case got[name] == nil:
			c.missing = append(c.missing, name)
		case want[name] == nil:
			c.more = append(c.more, name)
		case bytes.Equal(want[name], got[name]):
			c.same++
		default:
			c.reason = fmt.Sprintf("is another server or another version at the mesh: the tool %q has another definition", name)
			return
		}
	}
	if c.same == 0 && c.all > 0 {
		c.reason = "has no tool that the mesh has and this token may see"
	}
}

// approvalTool is a tool that the mesh adds to a tool list after the session has listed a tool whose calls all require
// approval. Clients use it to wait for the approval of a call.
const approvalTool = "sluice_approval_wait"

func (e *elsewhereSetup) printComparison(s clientsetup.Server, c *comparison) {
	switch {
	case c.reason != "":
		e.printf("  %s: stays as it is, because it %s", s.Name, c.reason)
	case c.all == 0:
		e.printf("  %s: works at the mesh", s.Name)
	default:
		text := fmt.Sprintf("  %s: %d of %d tools", s.Name, c.same, c.all)
		if len(c.missing) > 0 {
			text += "; not at the mesh: " + strings.Join(c.missing, ", ")
		}
		if len(c.more) > 0 {
			text += "; only at the mesh: " + strings.Join(c.more, ", ")
		}
		e.printf("%s", text)
	}
}

// entryCommand returns the command in an entry for a server of the mesh.
func (e *elsewhereSetup) entryCommand(f clientconfig.File, server string) (command string, args []string) {
	s, _ := e.plan.Server(server)
	return e.entryProgram(f), clientconfig.Relay{Server: s.Elsewhere, As: f.Client.ID, URL: e.at.URL}.Args()
}

func (e *elsewhereSetup) printChanges() {
	fmt.Fprintln(e.out)
	hide := e.hideSecrets()
	for _, c := range e.changes {
		e.printFileDiff(e.shownPath(c.File.Path), "behind the mesh", hide, c.Before, c.After)
	}
	e.printf("The servers then run at %s, with the files and accounts of that machine, and its policies decide on the calls.", e.at.URL)
	e.printf("The token goes to %s, which only you can read.", e.shownPath(filepath.Dir(e.at.Token(e.client))))
	if e.mustClose() {
		e.printf("Close Claude Code and Claude Desktop now: they rewrite their files, and could undo the change.")
	}
}

// write writes the token and then the clients' files. Then it tries each entry.
func (e *elsewhereSetup) write(ctx context.Context) error {
	if err := e.storeFiles(); err != nil {
		return err
	}
	key, err := e.secrets.Key(ctx, sealKey)
	if err != nil {
		return fmt.Errorf("create the key for the old entries: %w", err)
	}
	failed := 0
	for _, c := range e.changes {
		if err := c.Write(ctx, e.state, key); err != nil {
			failed++
			e.printf("%s was not changed: %v", e.shownPath(c.File.Path), err)
			continue
		}
		e.printf("Wrote %s.", e.shownPath(c.File.Path))
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d files of clients were not changed: close the clients and run the command again", failed, len(e.changes))
	}
	return e.prove(ctx)
}

// storeFiles stores the URL of the mesh, and the token and the certificate authority if they are new. It records each
// file before it writes the file.
func (e *elsewhereSetup) storeFiles() error {
	if e.state.Empty() {
		e.state.Elsewhere = true
	}
	e.state.Store = e.secrets.Kind()
	if err := e.state.Begin(); err != nil {
		return err
	}
	if err := e.state.Create(e.at.Address(), []byte(e.at.URL)); err != nil {
		return fmt.Errorf("store the URL of the mesh: %w", err)
	}
	if e.isNew {
		if err := e.state.Create(e.at.Token(e.client), []byte(e.mesh.token)); err != nil {
			return fmt.Errorf("store the token: %w", err)
		}
	}
	if e.authority == nil {
		return nil
	}
	if err := e.state.Create(e.at.Authority(), e.authority); err != nil {
		return fmt.Errorf("store the certificate authority: %w", err)
	}
	return nil
}

// prove starts each entry as its client would, and lists its tools. It returns an error if an entry does not work.
func (e *elsewhereSetup) prove(ctx context.Context) error {
	var failed []string
	for _, w := range e.plan.Wraps {
		file := e.plan.Files[w.File].File
		_, args := e.entryCommand(file, w.Server)
		listed, err := listServerOfCommand(ctx, exec.Command(e.programPath(), args...)) //nolint:gosec,noctx // this program; its connection ends it
		if err == nil {
			if difference := compareTools(e.compared[w.Server].behind.tools, listed.tools); difference != "" {
				err = errors.New(difference)
			}
		}
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s of %s: %v", w.Entry.Name, file.Client.Name, err))
			continue
		}
		e.printf("%s starts %s at the mesh.", file.Client.Name, w.Entry.Name)
	}
	e.printLeft(e.plan.Left)
	if len(failed) > 0 {
		return fmt.Errorf("these entries do not work yet. %s restores everything.\n%s", e.command("init --undo"), strings.Join(failed, "\n"))
	}
	var clients []string
	for _, c := range e.plan.Clients() {
		clients = append(clients, c.Name)
	}
	e.printf("Start %s again. %s gives the files back.", strings.Join(clients, " and "), e.command("init --undo"))
	return nil
}

// removeElsewhere removes the files that `init --http` created. It keeps files that were changed after `init`.
func (s *setup) removeElsewhere(ctx context.Context) error {
	dirs := make(map[string]bool)
	for path := range s.state.Created {
		dirs[filepath.Dir(path)] = true
	}
	_, changed, err := s.state.RemoveCreated(func(string) bool { return false })
	if err != nil {
		return err
	}
	if _, err := s.removeSecrets(ctx, clientsetup.MeshUndone{}); err != nil {
		return err
	}
	for _, path := range changed {
		s.printf("%s stays, because it was changed since init wrote it.", s.shownPath(path))
	}
	for dir := range dirs { // also remove the parent directories tokens and elsewhere if they are empty
		for range 3 {
			if os.Remove(dir) != nil { // the directory contains other files
				break
			}
			dir = filepath.Dir(dir)
		}
	}
	if err := s.state.End(); err != nil {
		return err
	}
	s.printf("The tokens for the mesh are removed from this machine. They stay valid until the operator of the mesh revokes them.")
	return nil
}
