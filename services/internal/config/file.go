// Package config reads the one YAML file that every program of the mesh shares.
// It is strict: what it does not know, or this version does not act on, is an
// error that names the place and the way out.
package config

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"
)

// File is the whole configuration. Each service takes its part. Relative paths
// are relative to the file; see [File.Path].
type File struct {
	// Listen is the address of the MCP edge.
	Listen string `yaml:"listen"`
	// ListenTLS is with what the MCP edge speaks TLS; empty where it does not.
	ListenTLS ListenTLS `yaml:"listen_tls"`
	// BehindProxy are addresses, or networks such as 10.0.0.0/8, of proxies in front of
	// the MCP edge: what they forward of their clients' addresses is believed, and TLS
	// is theirs to speak.
	BehindProxy []string `yaml:"behind_proxy"`
	// GRPC is the address of all services where they share one process.
	GRPC string `yaml:"grpc"`
	// Data is the folder for state; each role locks a folder of its own in it.
	Data string `yaml:"data"`
	// Hosts are the Host names that the MCP edge accepts beside loopback names,
	// without ports.
	Hosts []string `yaml:"hosts"`
	// Origins are the Origin headers that it accepts, for example
	// "https://app.example.com". A request without Origin comes from no browser
	// and is accepted.
	Origins []string `yaml:"origins"`
	// Auth says who may call.
	Auth Auth `yaml:"auth"`
	// Groups are people of the tenant "default" by their subjects, beside the groups
	// that their tokens name.
	Groups map[string][]string `yaml:"groups"`
	// TLS is how roles that live apart know each other.
	TLS TLS `yaml:"tls"`
	// Roles are the addresses of roles that live apart, by role.
	Roles map[string]Role `yaml:"roles"`
	// Stores are where roles keep their state.
	Stores Stores `yaml:"stores"`
	// Approvals configures how calls wait for people.
	Approvals Approvals `yaml:"approvals"`
	// Decisions says how the gateway comes by policy's decisions.
	Decisions Decisions `yaml:"decisions"`
	// Journal configures the gateway's journal.
	Journal Journal `yaml:"journal"`
	// Session configures sessions of the 2025 protocol revisions.
	Session Session `yaml:"session"`
	// Servers are the MCP servers behind the gateway, by name.
	Servers map[string]Server `yaml:"servers"`
	// Agents configures the mesh's own agents.
	Agents Agents `yaml:"agents"`
	// Policies are files or folders with policy documents.
	Policies []string `yaml:"policies"`
	// Telemetry configures tracing.
	Telemetry Telemetry `yaml:"telemetry"`
	// Log configures the logs of all programs.
	Log Log `yaml:"log"`

	// path is the file that was read; empty for defaults.
	path string
	// apart says that the file gives roles addresses of their own.
	apart bool
}

// Auth says who may call.
type Auth struct {
	// Tokens are bearer tokens that live as long as they stand here.
	Tokens []Token `yaml:"tokens"`
}

// Token is a bearer token. Exactly one of Token and SHA256 is set.
type Token struct {
	// Name is unique among all tokens.
	Name string `yaml:"name"`
	// Token is its text, at least 32 characters, best as a reference.
	Token Secret `yaml:"token"`
	// SHA256 is the hash of its text: 64 hexadecimal digits.
	SHA256 Secret `yaml:"sha256"`
	// Tenant is "default" where absent.
	Tenant string `yaml:"tenant"`
	// Subject is who holds it; the name where absent.
	Subject string `yaml:"subject"`
	// Owner is the subject of the person whom an agent works for.
	Owner string `yaml:"owner"`
	// Agent is the name of the agent that uses it.
	Agent string `yaml:"agent"`
	// Groups are the groups of the subject.
	Groups []string `yaml:"groups"`
	// Role is agent, operator, approver or viewer.
	Role string `yaml:"role"`
}

// ListenTLS is a certificate that clients trust, with its chain, and its key. Both
// files are set, or none.
type ListenTLS struct {
	// Cert and Key are PEM files.
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// TLS is how roles that live apart know each other.
type TLS struct {
	// Dir holds ca.pem, <role>.pem and <role>-key.pem.
	Dir string `yaml:"dir"`
}

// Role is where a role that lives apart is found.
type Role struct {
	// Listen is the address that it serves gRPC on.
	Listen string `yaml:"listen"`
	// Addr is the address at which others reach it.
	Addr string `yaml:"addr"`
}

// Decisions says how the gateway comes by policy's decisions.
type Decisions struct {
	// Keep uses a decision again for like calls, for as long as nothing changes that it was
	// made from. Else policy is asked about every call.
	Keep bool `yaml:"keep"`
}

// Journal configures the gateway's journal.
type Journal struct {
	// Sync is "never": a record is written before the call goes on and survives
	// a kill; or "always": it also survives a loss of power. The intent of a call that
	// a person approved survives that in any case.
	Sync string `yaml:"sync"`
	// CallsMiB is how much room the records of calls may take, in MiB: 64 to 1,048,576.
	CallsMiB int `yaml:"calls_mib"`
	// Share is how much of it the calls of one principal may take: above 0, and 1 at the
	// most, which is all of it.
	Share float64 `yaml:"share"`
}

// Session configures sessions of the 2025 protocol revisions.
type Session struct {
	// Idle is how long a session lives without a request.
	Idle time.Duration `yaml:"idle"`
	// MaxPerPrincipal is how many one principal may have open.
	MaxPerPrincipal int `yaml:"max_per_principal"`
	// Cap is how many sessions' worth of a session's limit one principal may
	// spend over all its sessions.
	Cap int `yaml:"cap"`
}

// Telemetry configures tracing.
type Telemetry struct {
	// OTLP is where spans go, for example "http://localhost:4317"; empty exports
	// nothing.
	OTLP string `yaml:"otlp"`
	// Sample is the share of traces that are sampled, 0 to 1.
	Sample float64 `yaml:"sample"`
	// TrustParent continues a client's trace instead of linking to it.
	TrustParent bool `yaml:"trust_parent"`
}

// Log configures the logs of all programs.
type Log struct {
	// Level is the lowest level that is logged: debug, info, warn or error.
	Level string `yaml:"level"`
}

// logLevels are the levels of logs by their names.
var logLevels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

// ParseLogLevel reads the name of a level.
func ParseLogLevel(name string) (slog.Level, error) {
	level, ok := logLevels[name]
	if !ok {
		return 0, fmt.Errorf("%q is not one of debug, info, warn, error", name)
	}
	return level, nil
}

// LogLevel returns the lowest level that is logged.
func (f *File) LogLevel() slog.Level { return logLevels[f.Log.Level] }

// Stores are where roles keep their state.
type Stores struct {
	// Policy is where the catalogue of tools is, in the words of Approval.
	Policy Secret `yaml:"policy"`
	// Approval is where approvals are: `sqlite`, in the data folder, or the URL of a
	// PostgreSQL database, best as a reference.
	Approval Secret `yaml:"approval"`
	// Agents is where agents are and their journals, in the same words.
	Agents Secret `yaml:"agents"`
	// AgentStates is the URL of a bucket for agents' states, for example
	// `s3://NAME?region=REGION`; empty keeps them in the data folder.
	AgentStates Secret `yaml:"agent_states"`
}

// Agents configures the mesh's own agents.
type Agents struct {
	// Workers is how many processes they run in, of 768 MiB each, or more if `turns.places` is above 18:
	// 1 to 64.
	Workers int `yaml:"workers"`
	// Turns are the places for turns, for each worker. A turn that waits for a model, a tool or people has
	// none.
	Turns Places `yaml:"turns"`
	// Questions bounds what is asked of models.
	Questions Questions `yaml:"questions"`
	// Guests are modules that agents may run beside those that are shipped, by name.
	Guests map[string]Guest `yaml:"guests"`
	// AcceptKeys are the public keys of other installations whose archives of agents may be
	// imported: Ed25519, 64 hexadecimal digits each.
	AcceptKeys []string `yaml:"accept_keys"`
	// Model is what agents ask that name none, as `provider:name`; empty: nothing.
	Model string `yaml:"model"`
	// Providers are providers of models by name. `script` is built in.
	Providers map[string]Provider `yaml:"providers"`
	// PersonDay bounds what all agents of one person may use of models in a day (UTC).
	PersonDay PersonDay `yaml:"person_day"`
}

// Places bounds how many work at a time, and how many wait for that. 0 means the default.
type Places struct {
	// Places is how many work at a time: up to 64 turns for each worker (18), or 1,024 questions (32).
	Places int `yaml:"places"`
	// PersonPlaces is how many of one person do, for each worker: at most Places; 6 turns, or 8 questions.
	PersonPlaces int `yaml:"person_places"`
	// Queue is how many wait for a place, up to 10,000 (256); more are refused.
	Queue int `yaml:"queue"`
	// PersonQueue is how many of one person wait: at most Queue; 32 turns, or 64 questions.
	PersonQueue int `yaml:"person_queue"`
	// Wait is how long one waits at most, up to 1 h (5 m).
	Wait time.Duration `yaml:"wait"`
}

// Questions bounds what is asked of models. 0 means the default.
type Questions struct {
	// Places, PersonPlaces, Queue, PersonQueue and Wait are as those of turns, for all workers together.
	Places       int           `yaml:"places"`
	PersonPlaces int           `yaml:"person_places"`
	Queue        int           `yaml:"queue"`
	PersonQueue  int           `yaml:"person_queue"`
	Wait         time.Duration `yaml:"wait"`
	// Timeout is how long one question may take, with its retries, up to 1 h; 0 means 10 m.
	Timeout time.Duration `yaml:"timeout"`
	// FirstByte is how long a provider may take until its answer begins, up to 1 h; 0 means 2 m.
	FirstByte time.Duration `yaml:"first_byte"`
}

// PersonDay bounds what one person may use of models in a day.
type PersonDay struct {
	// Cost is an amount of US dollars, counted for models that have prices: decimal digits with
	// an optional fraction. Empty means 10.
	Cost string `yaml:"cost"`
	// Tokens are those of questions and answers, of all models but `script`; 0 means 10,000,000.
	Tokens int64 `yaml:"tokens"`
}

// Provider is a provider of models.
type Provider struct {
	// Kind is openai, for all that speak its chat completions, or anthropic.
	Kind string `yaml:"kind"`
	// URL is where it is; empty means the provider's own.
	URL string `yaml:"url"`
	// Key is its secret, best as a reference; may be empty.
	Key Secret `yaml:"key"`
	// MaxTokens is how many tokens an answer may have; 0 means 8,192.
	MaxTokens int `yaml:"max_tokens"`
	// Tries is how often a question is asked in all that the provider refuses before an answer
	// has begun: 1 to 20; 0 means 5.
	Tries int `yaml:"tries"`
	// Backoff is the wait before the second try, at most 1 m, when the provider does not say how
	// long to wait. It doubles with each further try, up to 30 s; 0 s means 1 s.
	Backoff time.Duration `yaml:"backoff"`
	// Prices are of its models, by name, in US dollars for a million tokens.
	Prices map[string]Price `yaml:"prices"`
}

// Price is what a model costs, in US dollars for a million tokens: decimal digits with an
// optional fraction.
type Price struct {
	Input  string `yaml:"input"`
	Output string `yaml:"output"`
}

// Guest is a module that agents may run.
type Guest struct {
	// Module is its file.
	Module string `yaml:"module"`
	// SHA256 is the hash of its content, without which it does not run: 64 hexadecimal
	// digits.
	SHA256 string `yaml:"sha256"`
}

// Approvals configures how calls wait for people.
type Approvals struct {
	// Hold is how long a call is held open before it gets a ticket; 0 s gives the
	// ticket at once.
	Hold time.Duration `yaml:"hold"`
	// Clients are clients that wait longer or less long than others; the first that
	// fits counts.
	Clients []ApprovalClient `yaml:"clients"`
	// Decide is how long people have to decide.
	Decide time.Duration `yaml:"decide"`
	// Execute is how long an approved call may wait to run.
	Execute time.Duration `yaml:"execute"`
	// MaxPending is how many calls of one principal may wait.
	MaxPending int `yaml:"max_pending"`
	// MaxAsked is how often one principal may ask people.
	MaxAsked MaxAsked `yaml:"max_asked"`
	// OwnerMayApprove lets the owner of an agent decide on its calls.
	OwnerMayApprove bool `yaml:"owner_may_approve"`
	// Notify says whom to tell of approvals.
	Notify Notify `yaml:"notify"`
}

// MaxAsked is how often one principal may ask people in any stretch of time.
type MaxAsked struct {
	// Max is how often: 1 to 100,000.
	Max int `yaml:"max"`
	// Window is how long the stretch is: 1 s to [MaxAskedWindow].
	Window time.Duration `yaml:"window"`
}

// MaxAskedWindow is the longest stretch of time in which questions are counted.
const MaxAskedWindow = 24 * time.Hour

// ApprovalClient is how calls of some clients wait.
type ApprovalClient struct {
	// Name is a pattern for the name that a client gives itself when it connects;
	// `*` stands for any text.
	Name string `yaml:"name"`
	// Hold is how long its calls are held open; 0 s gives the ticket at once.
	// Required.
	Hold *time.Duration `yaml:"hold"`
}

// Default returns the configuration that is used where a file says nothing.
func Default() File {
	return File{
		Listen:    "127.0.0.1:8080",
		GRPC:      "127.0.0.1:9090",
		Data:      ".sluice",
		Stores:    Stores{Policy: "sqlite", Approval: "sqlite", Agents: "sqlite"},
		Agents:    Agents{Workers: 1},
		Approvals: Approvals{Hold: 45 * time.Second, Decide: 15 * time.Minute, Execute: 5 * time.Minute, MaxPending: 5, MaxAsked: MaxAsked{Max: 30, Window: time.Hour}},
		Decisions: Decisions{Keep: true},
		Journal:   Journal{Sync: "never", CallsMiB: 1024, Share: 0.5},
		Session:   Session{Idle: 30 * time.Minute, MaxPerPrincipal: 100, Cap: 10},
		Telemetry: Telemetry{Sample: 0.01},
		Log:       Log{Level: "info"},
	}
}

// standardRoles returns where roles that live apart are found by default.
func standardRoles() map[string]Role {
	return map[string]Role{
		"policy":    {Listen: ":9001", Addr: "policy:9001"},
		"ratelimit": {Listen: ":9002", Addr: "ratelimit:9002"},
		"approval":  {Listen: ":9003", Addr: "approval:9003"},
		"wasmagent": {Listen: ":9004", Addr: "wasmagent:9004"},
		"gateway":   {Listen: ":9005", Addr: "gateway:9005"},
	}
}

// Apart reports whether the roles live apart: whether the file names any of their
// addresses.
func (f *File) Apart() bool { return f.apart }

// MCPScheme is that of the MCP edge's URLs, http or https.
func (f *File) MCPScheme() string {
	if f.ListenTLS.Cert != "" {
		return "https"
	}
	return "http"
}

// Path returns p relative to the file's folder, or p where it is absolute, empty
// or there is no file.
func (f *File) Path(p string) string {
	if p == "" || filepath.IsAbs(p) || f.path == "" {
		return p
	}
	return filepath.Join(filepath.Dir(f.path), p)
}

// Name returns the file that was read; empty for defaults.
func (f *File) Name() string { return f.path }

// SetData puts another data folder in place of the file's, relative to where the
// process runs.
func (f *File) SetData(dir string) {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	f.Data = dir
}
