package classify

// Version is the version of the classifier's results. It increases with every change of the result for any definition,
// so that stored results are computed again. A test compares it with the results for the labelled sets.
const Version = 6
