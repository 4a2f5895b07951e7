"""The messages of proto/tandem/v1, built from their descriptors in a separate pool. So they work with any
protobuf version, and next to other descriptions of the same files in the process.
"""

from importlib import resources

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_pool = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(
    resources.files(__package__).joinpath("descriptors.binpb").read_bytes()
).file:
    _pool.Add(_file)


def message(name):
    """Returns the message class with this full name."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))


def enum_word(enum: str, number: int) -> str:
    """("Method", 4) -> "bild". Returns the number of an unknown value as text."""
    values = _pool.FindEnumTypeByName(f"tandem.v1.{enum}").values_by_number
    if number not in values:
        return str(number)
    name = values[number].name
    prefix = "".join("_" + c if c.isupper() else c for c in enum).upper().lstrip("_") + "_"
    return name.removeprefix(prefix).lower()


GenerateRequest = message("tandem.v1.GenerateRequest")
GenerateResponse = message("tandem.v1.GenerateResponse")
CompleteResponse = message("tandem.v1.CompleteResponse")
ScoreRequest = message("tandem.v1.ScoreRequest")
ScoreResponse = message("tandem.v1.ScoreResponse")
EmbedRequest = message("tandem.v1.EmbedRequest")
EmbedResponse = message("tandem.v1.EmbedResponse")
RerankRequest = message("tandem.v1.RerankRequest")
RerankResponse = message("tandem.v1.RerankResponse")
TokenizeRequest = message("tandem.v1.TokenizeRequest")
TokenizeResponse = message("tandem.v1.TokenizeResponse")
DetokenizeRequest = message("tandem.v1.DetokenizeRequest")
DetokenizeResponse = message("tandem.v1.DetokenizeResponse")
ListModelsRequest = message("tandem.v1.ListModelsRequest")
ListModelsResponse = message("tandem.v1.ListModelsResponse")
RpcStatus = message("google.rpc.Status")
ErrorInfo = message("google.rpc.ErrorInfo")
BadRequest = message("google.rpc.BadRequest")
RetryInfo = message("google.rpc.RetryInfo")

# By the name of the call: its path, request and response.
CALLS = {
    "Generate": ("/tandem.v1.Generation/Generate", GenerateRequest, GenerateResponse),
    "Complete": ("/tandem.v1.Generation/Complete", GenerateRequest, CompleteResponse),
    "Score": ("/tandem.v1.Generation/Score", ScoreRequest, ScoreResponse),
    "Rerank": ("/tandem.v1.Generation/Rerank", RerankRequest, RerankResponse),
    "Embed": ("/tandem.v1.Generation/Embed", EmbedRequest, EmbedResponse),
    "Tokenize": ("/tandem.v1.Generation/Tokenize", TokenizeRequest, TokenizeResponse),
    "Detokenize": ("/tandem.v1.Generation/Detokenize", DetokenizeRequest, DetokenizeResponse),
    "ListModels": ("/tandem.v1.Models/ListModels", ListModelsRequest, ListModelsResponse),
}
