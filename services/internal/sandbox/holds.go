package sandbox

// exitLauncher is the launcher's exit code where it could not start the program.
const exitLauncher = 126

// What is held or not, in the words of reports.
const (
	heldFiles      = "files"
	heldContents   = "contents of files"
	heldMetadata   = "modes and times of files"
	heldProcesses  = "processes"
	heldSignals    = "signals"
	heldTracing    = "tracing"
	heldListing    = "the list of processes"
	heldLimits     = "limits of processes"
	heldPriorities = "priorities of processes"
	heldSockets    = "Unix sockets with a path"
	heldAbstract   = "abstract Unix sockets"
	heldNetwork    = "network"
	heldInotify    = "the number of inotify instances"
	heldTCP        = "TCP"
	heldPrograms   = "programs"
	heldDatagrams  = "UDP, Multipath TCP and other protocols"
)

// everything is what the rules ask for.
func everything(r *Rules) []string {
	all := []string{heldFiles, heldProcesses, heldSockets, heldAbstract, heldPrograms}
	if r.NoNetwork {
		all = append(all, heldNetwork)
	}
	return all
}
