package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// These constants are the names of the sites. A site is a group of processes that serves one or more cells.
const (
	siteEcho  = "echo"
	siteProxy = "proxy"
	siteLean  = "lean"
	siteUp    = "up"
	siteUpJWT = "up-jwt"
	siteApart = "apart"
	// askedSuffix is the suffix in the names of the sites whose gateway does not cache decisions.
	askedSuffix = "-asked"
)

// roles lists the mesh services in the order in which they start. The gateway is last, because startSeparateRoles waits
// only until the last service is ready. The list is repeated here and not imported, because `make bench-diff` builds
// this package with the code of earlier commits.
var roles = []string{"identity", "policy", "ratelimit", "approval", "wasmagent", "gateway"}

// programs returns the names of the mesh's programs that are needed to measure cells.
func programs(cells []Cell) []string {
	of := map[string][]string{siteUp: {"sluice"}, siteUpJWT: {"sluice"}, siteApart: append([]string{"sluice"}, roles...)}
	var names []string
	for _, c := range cells {
		names = append(names, of[strings.TrimSuffix(c.site, askedSuffix)]...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// site is a group of processes that serves cells.
type site struct {
	at endpoint
	// dir is the directory for the site's files. bin is the directory that contains its programs.
	dir, bin string
	// env is the environment of the site's programs. If it is nil, they have the environment of this process.
	env []string
	// asked is true if the gateway does not cache decisions and therefore asks the policy service about every call.
	asked bool
	// The list own contains the site's processes, except the echo server.
	own []*process
}

type sites struct {
	cfg    Config
	dir    string
	tokens []string
	sink   *sink
	// issuer is nil until a site with JWTs starts.
	issuer *jwtIssuer
	echo   *site
	byID   map[string]*site
}

// openSites starts the echo server and the receiver of spans. Other sites start when they are first used. All files are
// written to dir.
func openSites(ctx context.Context, cfg Config, dir string) (*sites, error) {
	drain, err := startSink(ctx)
	if err != nil {
		return nil, err
	}
	s := &sites{cfg: cfg, dir: dir, tokens: newTokens(), sink: drain, byID: make(map[string]*site)}
	if s.echo, err = s.get(ctx, siteEcho, false); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// get returns the site with the given name, and starts the site if necessary. If base is true, the site runs the
// programs of the base commit.
func (s *sites) get(ctx context.Context, kind string, base bool) (*site, error) {
	id, bin := kind, s.cfg.Bin
	if base {
		id, bin = kind+baseSuffix, s.cfg.Base
	}
	if known, ok := s.byID[id]; ok {
		return known, nil
	}
	start := map[string]func(context.Context, *site) error{
		siteEcho: s.startEcho, siteProxy: s.startProxy, siteLean: s.startLean, siteUp: s.startUp, siteUpJWT: s.startUpWithJWTs, siteApart: s.startSeparateRoles, siteThv: s.startThv, siteVMCP: s.startVMCP,
	}[strings.TrimSuffix(kind, askedSuffix)]
	made := &site{dir: filepath.Join(s.dir, id), bin: bin, asked: strings.HasSuffix(kind, askedSuffix)}
	s.byID[id] = made // a site that failed to start is stored too, so that close stops its processes
	if err := os.Mkdir(made.dir, 0o700); err != nil {
		return nil, err
	}
	if err := start(ctx, made); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errStart, id, err)
	}
	return made, nil
}

// processes returns the names and ids of the processes that take part in a call to the site, including the load
// generator and the echo server.
func (s *sites) processes(of *site) (names []string, pids []int) {
	names, pids = []string{"load"}, []int{os.Getpid()}
	all := of.own
	if of != s.echo {
		all = append(slices.Clip(all), s.echo.own...)
	}
	for _, p := range all {
		names, pids = append(names, p.name), append(pids, p.pid())
	}
	return names, pids
}

func (s *sites) startEcho(ctx context.Context, to *site) error {
	return s.startSelf(ctx, to, "echo")
}

func (s *sites) startProxy(ctx context.Context, to *site) error {
	return s.startSelf(ctx, to, "proxy", "http://"+s.echo.at.addr)
}

func (s *sites) startLean(ctx context.Context, to *site) error {
	return s.startSelf(ctx, to, "lean", s.echo.at.addr)
}

func (s *sites) startSelf(ctx context.Context, to *site, role string, args ...string) error {
	addrs, err := freeAddrs(ctx, 1)
	if err != nil {
		return err
	}
	to.at = endpoint{addr: addrs[0], path: "/mcp"}
	p, err := s.start(to, role, s.cfg.Self, append([]string{role, addrs[0]}, args...)...)
	if err != nil {
		return err
	}
	return p.ready(ctx, "http://"+addrs[0]+healthPath)
}

// tokensOf returns the tokens of the principals in a cell.
func (s *sites) tokensOf(cell Cell) []string {
	if cell.site == siteUpJWT {
		return s.issuer.tokens
	}
	return s.tokens
}

func (s *sites) startUp(ctx context.Context, to *site) error { return s.startSluice(ctx, to, "") }

// startUpWithJWTs starts a mesh that also identifies callers by JWTs of an issuer.
func (s *sites) startUpWithJWTs(ctx context.Context, to *site) (err error) {
	if s.issuer, err = startIssuer(ctx); err != nil {
		return err
	}
	if err := s.startSluice(ctx, to, s.issuer.url()); err != nil {
		return err
	}
	return s.issuer.awaitKeys(ctx, to.at)
}

// startSluice starts `sluice up`. If issuer is not empty, it is the URL of an issuer whose JWTs identify callers.
func (s *sites) startSluice(ctx context.Context, to *site, issuer string) error {
	addrs, err := freeAddrs(ctx, 2)
	if err != nil {
		return err
	}
	config, err := s.writeMesh(to.dir, meshFile{MCP: addrs[0], GRPC: addrs[1], Data: "data", Asked: to.asked, Issuer: issuer})
	if err != nil {
		return err
	}
	to.at = s.meshAt(addrs[0])
	p, err := s.start(to, "sluice", to.program("sluice"), "up", "--config", config)
	if err != nil {
		return err
	}
	return p.ready(ctx, "http://"+addrs[0]+"/readyz")
}

func (s *sites) startSeparateRoles(ctx context.Context, to *site) error {
	roles := slices.DeleteFunc(slices.Clone(roles), func(role string) bool { // an earlier commit may not have all roles
		_, err := os.Stat(to.program(role))
		return err != nil
	})
	addrs, err := freeAddrs(ctx, 2+len(roles))
	if err != nil {
		return err
	}
	mesh := meshFile{MCP: addrs[0], GRPC: addrs[1], Data: "data", Certs: "certs", Asked: to.asked, Roles: make(map[string]string)}
	for i, role := range roles {
		mesh.Roles[role] = addrs[2+i]
	}
	config, err := s.writeMesh(to.dir, mesh)
	if err != nil {
		return err
	}
	certs := exec.CommandContext(ctx, to.program("sluice"), "certs", "--dir", filepath.Join(to.dir, mesh.Certs))
	if out, err := certs.CombinedOutput(); err != nil {
		return fmt.Errorf("create certificates: %w: %s", err, out)
	}
	to.at = s.meshAt(addrs[0])
	var last *process
	for _, role := range roles {
		if last, err = s.start(to, role, to.program(role), "-config", config); err != nil {
			return err
		}
	}
	return last.ready(ctx, "http://"+addrs[0]+"/readyz")
}

func (s *sites) start(to *site, name, program string, args ...string) (*process, error) {
	p, err := startProcess(to, name, program, args...)
	if err == nil {
		to.own = append(to.own, p)
	}
	return p, err
}

func (s *site) program(name string) string { return filepath.Join(s.bin, name) }

func (s *sites) meshAt(addr string) endpoint {
	return endpoint{addr: addr, path: "/mcp/" + serverName}
}

func (s *sites) close() {
	for _, of := range s.byID {
		for _, p := range of.own {
			p.close()
		}
	}
	s.sink.close()
	if s.issuer != nil {
		s.issuer.close()
	}
}
