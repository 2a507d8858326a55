package config

import "time"

// Agents configures the mesh's own agents.
type Agents struct {
	// Workers is the maximum number of processes that run agents: 1 to 64. A process may use 768 MiB, or more if
	// `turns.places` is above 18.
	Workers int `yaml:"workers"`
	// Turns limits the turns of agents, for each worker. A turn that waits for a model, a tool or people does not use a
	// place.
	Turns Places `yaml:"turns"`
	// Questions limits the requests to models, for all workers together.
	Questions Questions `yaml:"questions"`
	// Guests are modules that agents may run in addition to the built-in ones, by name: 1 to 64 lower-case letters, digits
	// or `-`.
	Guests map[string]Guest `yaml:"guests"`
	// AcceptKeys lists public keys (Ed25519, 64 hexadecimal digits) of installations whose agents may be imported.
	AcceptKeys []string `yaml:"accept_keys"`
	// Model is the model of agents that do not name one, as `PROVIDER:MODEL`.
	Model string `yaml:"model"`
	// Providers are providers of models, by name: 1 to 32 lower-case letters, digits or `-`. `script` is built in.
	Providers map[string]Provider `yaml:"providers"`
	// PersonDay limits the use of models by all agents of one person in a day (UTC).
	PersonDay PersonDay `yaml:"person_day"`
}

// Places limits the turns of one worker. The zero value of a field selects its default, which its comment states.
type Places struct {
	// Places is the maximum number of turns that a worker runs at a time: 1 to 64; 0 means `18`.
	Places int `yaml:"places"`
	// PersonPlaces is the maximum number of these turns for one person: at most `places`; 0 means `6`.
	PersonPlaces int `yaml:"person_places"`
	// Queue is the maximum number of waiting turns: 1 to 10,000; 0 means `256`. Further turns are refused.
	Queue int `yaml:"queue"`
	// PersonQueue is the maximum number of waiting turns for one person: at most `queue`; 0 means `32`.
	PersonQueue int `yaml:"person_queue"`
	// Wait is the maximum time that a turn waits: at most 1 h; 0 means `5m`.
	Wait time.Duration `yaml:"wait"`
}

// Questions limits the requests to models, for all workers together. The zero value of a field selects its default,
// which its comment states.
type Questions struct {
	// Places is the maximum number of requests at a time: 1 to 1,024; 0 means `32`.
	Places int `yaml:"places"`
	// PersonPlaces is the maximum number of these requests for one person: at most `places`; 0 means `8`.
	PersonPlaces int `yaml:"person_places"`
	// Queue is the maximum number of waiting requests: 1 to 10,000; 0 means `256`.
	Queue int `yaml:"queue"`
	// PersonQueue is the maximum number of waiting requests for one person: at most `queue`; 0 means `64`.
	PersonQueue int `yaml:"person_queue"`
	// Wait is the maximum time that a request waits: at most 1 h; 0 means `5m`.
	Wait time.Duration `yaml:"wait"`
	// Timeout is the maximum duration of a request with its retries: at most 1 h; 0 means `10m`.
	Timeout time.Duration `yaml:"timeout"`
	// FirstByte is the maximum time until a response begins: at most 1 h; 0 means `2m`.
	FirstByte time.Duration `yaml:"first_byte"`
}

// PersonDay limits the use of models by all agents of one person in a day (UTC).
type PersonDay struct {
	// Cost is the maximum cost in US dollars, in quotes, for models that have prices. Empty means `"10"`.
	Cost string `yaml:"cost"`
	// Tokens is the maximum number of tokens in requests and responses, except of `script`; 0 means `10000000`.
	Tokens int64 `yaml:"tokens"`
}

// Provider is a provider of models.
type Provider struct {
	// Kind is `anthropic`, or `openai` for every server with OpenAI's chat completions API. Required.
	Kind string `yaml:"kind"`
	// URL is an https address, or an http address on this machine. Empty means the provider's address.
	URL string `yaml:"url"`
	// Key is the provider's API key, if it needs one.
	Key Secret `yaml:"key"`
	// MaxTokens is the maximum number of tokens in a response: at most 200,000; 0 means `8192`.
	MaxTokens int `yaml:"max_tokens"`
	// Tries is how often a request is sent if the provider refuses it before its response begins: 1 to 20; 0 means `5`.
	Tries int `yaml:"tries"`
	// Backoff is the pause before the second try, unless the provider specifies one: at most 1 m; 0 means `1s`. It doubles
	// with each try, up to 30 s.
	Backoff time.Duration `yaml:"backoff"`
	// Prices are the prices of models, by name.
	Prices map[string]Price `yaml:"prices"`
}

// Price is the price of a model.
type Price struct {
	// Input is the price of a million tokens of requests, in US dollars and in quotes, such as `"1.25"`. Required.
	Input string `yaml:"input"`
	// Output is the price of a million tokens of responses, in the same form. Required.
	Output string `yaml:"output"`
}

// Guest is a WebAssembly module that agents may run.
type Guest struct {
	// Module is the module's file. Required.
	Module string `yaml:"module"`
	// SHA256 is the hash of the file, 64 hexadecimal digits. Other files do not run. Required.
	SHA256 string `yaml:"sha256"`
}

const (
	maxTurnPlaces     = 64
	maxQuestionPlaces = 1024
	maxQueue          = 10_000
)

func (a Agents) checkPlaces(p *problems) {
	q := a.Questions
	a.Turns.check(p, "agents.turns", maxTurnPlaces)
	Places{q.Places, q.PersonPlaces, q.Queue, q.PersonQueue, q.Wait}.check(p, "agents.questions", maxQuestionPlaces)
	checkWait(p, "agents.questions.timeout", q.Timeout)
	checkWait(p, "agents.questions.first_byte", q.FirstByte)
}

func (q Places) check(p *problems, at string, most int) {
	within := func(key string, n, most int) {
		if n < 0 || n > most {
			p.addf(at+"."+key, "%d is not between 1 and %d; 0 means the default", n, most)
		}
	}
	within("places", q.Places, most)
	within("queue", q.Queue, maxQueue)
	if q.Places > 0 {
		most = q.Places
	}
	within("person_places", q.PersonPlaces, most)
	most = maxQueue
	if q.Queue > 0 {
		most = q.Queue
	}
	within("person_queue", q.PersonQueue, most)
	checkWait(p, at+".wait", q.Wait)
}

func checkWait(p *problems, at string, d time.Duration) {
	if d < 0 || d > time.Hour {
		p.addf(at, "%s is not between 0s, which means the default, and 1h", d)
	}
}
