// Package wasmagent serves sluice.wasmagent.v1: agents in WebAssembly that do nothing by
// themselves. What they ask for is done by their host, or not at all.
package wasmagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/gallery"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guests"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

// WorkerMain becomes a worker where the program was started as one, and then does not
// return. The main function of each program that builds this role calls it first.
func WorkerMain() { worker.Main() }

const (
	// maxAgents is how many agents there may be, and maxOwn how many one principal may
	// have made, with those that ended and can be brought back.
	maxAgents = 10_000
	maxOwn    = 1000
	// maxPrompts is how many prompts are worked on at a time, and maxOwnPrompts how many
	// of one principal's: their guests fit into a worker together.
	maxPrompts    = workerMemory / 4 * 3 / guestMemory
	maxOwnPrompts = maxPrompts / 3
	// maxBytes is how much all agents may be together, in bytes, and maxOwnBytes how much
	// those of one principal: their files, conversations and snapshots.
	maxBytes    = 1 << 30
	maxOwnBytes = 256 << 20
	// sweepTime is how often what has ended for good is forgotten.
	sweepTime = time.Minute
	// What a worker may have, and what compiling a module may take.
	workerMemory  = 768 << 20
	guestMemory   = 32 << 20
	compileMemory = 768 << 20
	compileTime   = time.Minute
)

// Config configures the service.
type Config struct {
	// Data is the folder in which the role keeps its state.
	Data string
	// Program is what is started as a worker: one that calls [WorkerMain]. Empty: the file
	// that runs.
	Program string
	// Guests are those that agents may run beside the shipped ones, by name.
	Guests map[string]guests.Listed
	// Hold is for how long whoever prompts waits while people decide on what the agent asks
	// for; then the prompt goes on alone.
	Hold time.Duration
}

// Deps are the live objects that a [Service] works with. All are required.
type Deps struct {
	// Gateway is how agents call tools. Calls on it carry the principal of
	// [authn.OnBehalfOf].
	Gateway gatewayv1.GatewayServiceClient
	// Log receives what people are to know.
	Log *slog.Logger
}

// Service implements wasmagentv1.AgentServiceServer and, beside it,
// wasmagentv1.GalleryServiceServer.
type Service struct {
	wasmagentv1.UnimplementedAgentServiceServer

	dir     *datadir.Dir
	gallery *gallery.Gallery
	guests  *guests.Guests
	workers *worker.Supervisor
	gateway gatewayv1.GatewayServiceClient
	hold    time.Duration
	log     *slog.Logger

	mu     sync.Mutex
	agents map[string]*known
	// made counts agents, the newest last.
	made int64
	own  map[principal.Key]int
	// prompts are those that are worked on, by who asked.
	prompts map[principal.Key]int
	working int

	// compiling has somebody in it while a guest is compiled. refused is why modules are not,
	// by their digests: whoever is in it has that, too.
	compiling chan struct{}
	refused   map[string]error
}

// known is an agent and its place among all.
type known struct {
	*agent.Agent
	place int64
}

// New returns a Service, which the caller closes.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Gateway == nil || deps.Log == nil || cfg.Data == "" {
		return nil, errors.New("wasmagent: a folder, the gateway and a log are required")
	}
	program := cfg.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program, which its workers are: %w", err)
		}
	}
	runs, err := guests.New(cfg.Guests)
	if err != nil {
		return nil, err
	}
	templates, err := gallery.New()
	if err != nil {
		return nil, err
	}
	dir, err := datadir.Open(cfg.Data, "wasmagent")
	if err != nil {
		return nil, err
	}
	workers, err := worker.NewSupervisor(worker.Config{
		Program: program, Cache: dir.Path("compiled"), Memory: workerMemory, CompileTime: compileTime, CompileMemory: compileMemory,
	}, deps.Log)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &Service{
		dir: dir, gallery: templates, guests: runs, workers: workers, gateway: deps.Gateway, hold: cfg.Hold, log: deps.Log, agents: make(map[string]*known), own: make(map[principal.Key]int),
		prompts: make(map[principal.Key]int), compiling: make(chan struct{}, 1), refused: make(map[string]error),
	}, nil
}

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	wasmagentv1.RegisterAgentServiceServer(r, s)
	wasmagentv1.RegisterGalleryServiceServer(r, galleryServer{Service: s})
}

// Run implements app.Runner: it forgets what has ended for good.
func (s *Service) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-time.After(sweepTime):
			s.sweep(now)
		}
	}
}

func (s *Service) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, a := range s.agents {
		if a.Gone(now) {
			s.forget(id, a)
		}
	}
}

// forget needs the lock.
func (s *Service) forget(id string, a *known) {
	delete(s.agents, id)
	key := principal.Person(a.Creator)
	if s.own[key]--; s.own[key] == 0 {
		delete(s.own, key)
	}
}

// Close ends the turns that agents take, and the worker, and lets the folder go.
func (s *Service) Close() error {
	for _, a := range s.sorted() {
		a.Shut()
	}
	return errors.Join(s.workers.Close(), s.dir.Close())
}

// sorted are the agents, the newest first.
func (s *Service) sorted() []*known {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*known, 0, len(s.agents))
	for _, a := range s.agents {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b *known) int { return cmp.Compare(b.place, a.place) })
	return all
}

// compile compiles a guest unless that was done.
func (s *Service) compile(ctx context.Context, name string) (digest string, err error) {
	if digest = s.guests.Digest(name); s.workers.Knows(digest) {
		return digest, nil
	}
	select { // one at a time
	case s.compiling <- struct{}{}:
		defer func() { <-s.compiling }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	text, digest, err := s.guests.Get(name)
	if err != nil || s.workers.Knows(digest) {
		return digest, err
	}
	if err := s.refused[digest]; err != nil {
		return "", err
	}
	if _, err = s.workers.Compile(ctx, text); errors.Is(err, worker.ErrModule) { // it will be no other one
		s.refused[digest] = err
	}
	return digest, err
}

// room tells whether agents of somebody's may become larger. What has ended makes way, the
// oldest first. An agent becomes larger by some megabytes at the most until it is asked again.
func (s *Service) room(of principal.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, own := 0, 0
	var ended []*known
	for _, a := range s.agents {
		bytes, mine := a.Size(), principal.Person(a.Creator) == of
		all += bytes
		if mine {
			own += bytes
		}
		if mine && !a.Ended().IsZero() {
			ended = append(ended, a)
		}
	}
	slices.SortFunc(ended, func(a, b *known) int { return a.Ended().Compare(b.Ended()) })
	for _, a := range ended {
		if own <= maxOwnBytes && all <= maxBytes {
			break
		}
		all, own = all-a.Size(), own-a.Size()
		s.forget(a.ID, a)
	}
	if own > maxOwnBytes || all > maxBytes {
		return errRoom
	}
	return nil
}

// begin counts a guest of somebody's that runs. The function ends it.
func (s *Service) begin(of principal.Key) (func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.working >= maxPrompts || s.prompts[of] >= maxOwnPrompts {
		return nil, errPromptsFull
	}
	s.working++
	s.prompts[of]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.working--
		if s.prompts[of]--; s.prompts[of] == 0 {
			delete(s.prompts, of)
		}
	}, nil
}
